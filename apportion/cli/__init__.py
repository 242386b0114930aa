"""The command line. A wrong option or input ends it with code 2 and one line on stderr: problem, value, remedy."""

from __future__ import annotations

from typing import Annotated

import typer

from apportion import __version__
from apportion.cli.allocate import allocate
from apportion.cli.errors import OneLineErrors
from apportion.cli.train import train
from apportion.cli.vote import vote

app = typer.Typer(cls=OneLineErrors, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def apportion(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Decides how many rollouts each prompt gets: while language models learn, and while they vote."""
    if version:
        typer.echo(f"apportion {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for command in (allocate, train, vote):
    app.command()(command)
