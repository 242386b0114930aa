"""The command line. Wrong options and input end it with exit code 2 and one line: problem, value, remedy."""

from typing import Annotated

import typer

from apportion import __version__
from apportion.cli.allocate import allocate
from apportion.cli.diagnose import diagnosis
from apportion.cli.errors import OneLineErrors
from apportion.cli.evaluate import evaluate_command
from apportion.cli.import_ import import_
from apportion.cli.replay import replay_command
from apportion.cli.report import report
from apportion.cli.revote import RevoteCommand, revote
from apportion.cli.serve import ServeCommand, serve
from apportion.cli.simulate import simulation
from apportion.cli.training import UnreadArguments, lab, trl, verl
from apportion.cli.vote import VoteCommand, vote
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
app.command("simulate")(simulation)
app.command()(trl)
app.command(cls=UnreadArguments)(verl)
app.command()(watch)


@app.command("revote", cls=RevoteCommand, help=revote.__doc__)
def _revote() -> None:
    """Stand in for ``revote``, whose options ``RevoteCommand`` makes when they are needed."""


@app.command("vote", cls=VoteCommand, help=vote.__doc__)
def _vote() -> None:
    """Stand in for ``vote``, whose options ``VoteCommand`` makes when they are needed."""


@app.command("serve", cls=ServeCommand, help=serve.__doc__)
def _serve() -> None:
    """Stand in for ``serve``, whose options ``ServeCommand`` makes when they are needed."""
