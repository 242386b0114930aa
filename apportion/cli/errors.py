"""How a command ends if its input is refused: exit code 2 and one line on stderr. A signal ends it with a line too."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from apportion.runs.signals import INTERRUPTED, code_of

USAGE = 2
UsageError: Any = typer.BadParameter.__bases__[0]  # of click, or of the copy of click within typer


class OneLineErrors(TyperGroup):
    """A group of commands whose usage errors take one line, like all other errors."""

    def main(self, *args: Any, **settings: Any) -> Any:
        try:
            code = super().main(*args, **{**settings, "standalone_mode": False})
        except UsageError as error:
            command = error.ctx.command_path if error.ctx else "apportion"
            code = fail(f"{error.format_message().rstrip('.')}; see {command} --help")
        except typer.Abort:
            code = INTERRUPTED
        sys.exit(code)

    def invoke(self, ctx: Any) -> Any:
        """Run a command. A signal that it leaves to us ends it with one line."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            typer.echo("Stopped.", err=True)
            raise typer.Exit(code_of(stop)) from None


@contextmanager
def usage_errors(*kinds: type[Exception]) -> Iterator[None]:
    """End the command with code 2 and one line if one of these errors is raised in the block."""
    try:
        yield
    except kinds as error:
        raise typer.Exit(fail(str(error))) from error


def fail(problem: str) -> int:
    """Write the line to stderr; return the exit code."""
    typer.echo(f"error: {' '.join(problem.split())}", err=True)
    return USAGE
