"""The command line. Wrong options and input end it with exit code 2 and one line: problem, value, remedy."""

from typing import Annotated

import typer

from apportion import __version__
from apportion.cli.allocate import allocate
from apportion.cli.diagnose import diagnosis
from apportion.cli.errors import OneLineErrors
from apportion.cli.evaluate import evaluate_command
from apportion.cli.import_ import import_
from apportion.cli.options import settings_command
from apportion.cli.replay import replay_command
from apportion.cli.report import report
from apportion.cli.revote import revote, revote_options
from apportion.cli.serve import serve, serve_options
from apportion.cli.simulate import simulation, simulation_options
from apportion.cli.training import UnreadArguments, lab, trl, verl
from apportion.cli.vote import vote, vote_options
from apportion.cli.watch import watch

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


app.command()(allocate)
app.command("diagnose")(diagnosis)
app.command("evaluate")(evaluate_command)
app.command("import")(import_)
app.command()(lab)
app.command("replay")(replay_command)
app.command()(report)
app.command()(trl)
app.command(cls=UnreadArguments)(verl)
app.command()(watch)


def _made_later() -> None:
    """Stand in for a command whose options are made when they are needed."""


for _name, _command, _options in (
    ("revote", revote, revote_options),
    ("serve", serve, serve_options),
    ("simulate", simulation, simulation_options),
    ("vote", vote, vote_options),
):
    app.command(_name, cls=settings_command(_command, _options), help=_command.__doc__)(_made_later)
