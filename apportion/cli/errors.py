"""How a command ends where it is refused: code 2 and one line on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

USAGE = 2
UsageError: Any = typer.BadParameter.__bases__[0]  # of click, or of the copy of click within typer


class OneLineErrors(TyperGroup):
    """Commands whose usage errors take one line, as all others do."""

    def main(self, *args: Any, **settings: Any) -> Any:
        try:
            code = super().main(*args, **{**settings, "standalone_mode": False})
        except UsageError as error:
            command = error.ctx.command_path if error.ctx else "apportion"
            code = fail(f"{error.format_message().rstrip('.')}; see {command} --help")
        except typer.Abort:
            code = 130
        sys.exit(code)


@contextmanager
def usage_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Ends the command with code 2 and one line where the user's input is refused."""
    try:
        yield
    except kinds as error:
        raise typer.Exit(fail(str(error))) from error


def fail(problem: str) -> int:
    """Writes the line; the code to end with."""
    typer.echo(f"error: {' '.join(problem.split())}", err=True)
    return USAGE
