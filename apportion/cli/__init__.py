"""The command line. Wrong options and input end it with exit code 2 and one line: problem, value, remedy."""

from typing import Annotated

import typer

from apportion import __version__
from apportion.cli.errors import OneLineErrors

app = typer.Typer(cls=OneLineErrors, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def apportion(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Decide how many rollouts each prompt gets, in training and in voting."""
    if version:
        typer.echo(f"apportion {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
