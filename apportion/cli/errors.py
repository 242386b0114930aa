"""How a command ends if its input is refused, its output cannot be written, or a signal comes: one line on stderr."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from keyword import iskeyword
from typing import Any, TextIO

import typer
from typer.core import TyperGroup

from apportion.runs.signals import INTERRUPTED, code_of
from apportion.untrusted import one_line

FAILED, USAGE = 1, 2
UNWRITABLE = (errno.ENOSPC, errno.EPIPE, errno.EIO, errno.EBADF, errno.EDQUOT)
"""The errors of a full disk, and of a pipe or a terminal that nobody reads any more."""

UsageError: Any = typer.BadParameter.__bases__[0]  # of click, or of the copy of click within typer


GROUPS = {
    "Look at a run": {
        "diagnose": "Say what a recorded run wasted and what would help.",
        "evaluate": "Print Mean@k, Pass@k and Maj@k of a run or a vote.",
        "replay": "Say what other rules would have done.",
        "report": "Show runs and votes side by side on one page.",
        "watch": "Follow a rollout log while a run writes it.",
        "import": "Write a run of another tool as a rollout log.",
    },
    "Plan": {
        "allocate": "Split a budget of rollouts over prompts.",
        "forecast": "Say what the first epoch will be.",
    },
    "Train": {
        "lab": "Compare allocators on a small policy, on the CPU.",
    },
    "Vote": {
        "vote": "Vote on questions until a stopping rule is met.",
        "revote": "Count the samples of a vote again by another rule.",
        "serve": "Serve an endpoint that votes on each request.",
    },
}
"""The commands in the order and under the headings of the help. Fixed here, because asking each one would import it."""


class OneLineErrors(TyperGroup):
    """The commands, each imported when it is used. Their usage errors take one line, like all other errors."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: None for names in GROUPS.values() for name in names}  # type: ignore[misc]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command, or None for another name."""
        if cmd_name not in self.commands:
            return None
        module = import_module(f"apportion.cli.{cmd_name}{'_' * iskeyword(cmd_name)}")
        return getattr(module, f"{cmd_name}_command")

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands into the help."""
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([*commands.items()])

    def main(self, *args: Any, **settings: Any) -> Any:
        if sys.stdout is None:
            sys.exit(fail("the output cannot be written, because stdout is closed; open it", FAILED))
        try:
            code = super().main(*args, **{**settings, "standalone_mode": False})
            with _output_errors():
                sys.stdout.flush()  # now, because Python prints a warning if it fails at exit
        except UsageError as error:
            command = error.ctx.command_path if error.ctx else "apportion"
            code = fail(f"{error.format_message().rstrip('.')}; see {command} --help")
        except typer.Exit as error:
            code = error.exit_code
        except typer.Abort:
            code = INTERRUPTED
        sys.exit(code)

    def make_context(self, *args: Any, **settings: Any) -> Any:
        """Parse the arguments, which prints the help."""
        with _output_errors():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: Any) -> Any:
        """Run a command. If it does not handle a signal itself, the signal ends it with one line."""
        try:
            with _output_errors():
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


@contextmanager
def missing_extra(what: str, extra: str) -> Iterator[None]:
    """End the command with code 2 and one line if a package that ``what`` needs cannot be imported in the block."""
    try:
        yield
    except ImportError as error:
        if str(error.name).startswith("apportion"):
            raise
        package = str(error.name).partition(".")[0]
        missing = f"{what} needs {package}, which is not installed; pip install 'apportion[{extra}]'"
        raise typer.Exit(fail(missing if error.name else str(error))) from error
    except OSError as error:  # a library of it needs a folder for temporary files
        problem = f"{what} cannot be loaded, got an error of the system ({error}); make room on the disk"
        raise typer.Exit(fail(problem)) from error


def fail(problem: str, code: int = USAGE) -> int:
    """Write the line to stderr and return the exit code, even if stderr is closed."""
    try:
        typer.echo(f"error: {one_line(problem)}", err=True)
    except OSError:
        _discard(sys.stderr)
    return code


@contextmanager
def _output_errors() -> Iterator[None]:
    """End the command with code 1 and one line if stdout cannot be written to in the block."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno not in UNWRITABLE:
            raise
        _discard(sys.stdout)
        raise typer.Exit(
            fail(f"the output cannot be written ({error.strerror}); give it room or a reader", FAILED)
        ) from error


def _discard(stream: TextIO) -> None:
    """Discard the buffer of ``stream``, so that Python does not fail on it again at exit."""
    with suppress(OSError, ValueError):  # a stream without a file has nothing to redirect
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
