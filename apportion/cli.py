"""The command line. A wrong option or input ends it with code 2 and one line on stderr: problem, value, remedy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer
from typer.core import TyperGroup

from apportion import __version__
from apportion.allocation_text import allocation_json, allocation_text
from apportion.allocators.vip import GroupEstimator
from apportion.solve import METHODS, Method, solve
from apportion.tables import Table, read_columns, write_counts

USAGE = 2
UsageError: Any = typer.BadParameter.__bases__[0]  # of click, or of the copy of click within typer


class OneLineErrors(TyperGroup):
    """Commands whose usage errors take one line, as all others do."""

    def main(self, *args: Any, **settings: Any) -> Any:
        try:
            code = super().main(*args, **{**settings, "standalone_mode": False})
        except UsageError as error:
            command = error.ctx.command_path if error.ctx else "apportion"
            code = _fail(f"{error.format_message().rstrip('.')}; see {command} --help")
        except typer.Abort:
            code = 130
        sys.exit(code)


app = typer.Typer(cls=OneLineErrors, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def apportion(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Decides how many rollouts each prompt gets when language models learn from verifiable rewards."""
    if version:
        typer.echo(f"apportion {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def allocate(
    budget: Annotated[int, typer.Option(help="Rollouts in total; for hora, pre-rollouts included.")],
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "vip",
    estimator: Annotated[str, typer.Option(help=f"One of {', '.join(get_args(GroupEstimator))}.")] = "rloo",
    success: Annotated[str | None, typer.Option(help="Success probabilities, separated by commas.")] = None,
    successes: Annotated[str | None, typer.Option(help="For hora: correct pre-rollouts, by commas.")] = None,
    trials: Annotated[str | None, typer.Option(help="For hora: all pre-rollouts, by commas.")] = None,
    table: Annotated[
        Path | None,
        typer.Option("--input", help=".csv, .jsonl or .parquet with a column success, or successes and trials."),
    ] = None,
    low: Annotated[int, typer.Option(help="The least that each prompt gets.")] = 3,
    high: Annotated[int, typer.Option(help="The most that each prompt gets.")] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write all counts to this .csv.")] = None,
) -> None:
    """Splits a budget of rollouts over prompts, exactly optimally, from success rates or pre-rollouts."""
    with _usage_errors(ValueError):
        given: dict[str, Any] = {"success": success, "successes": successes, "trials": trials}
        given = {column: _numbers(column, text) for column, text in given.items() if text is not None}
        ids = None
        if table is not None:
            rows = _rows(table, method, list(given))
            given = {column: rows.numbers(column) for column in rows.cells if column != "id"}
            ids = rows.cells.get("id")
        if not given:
            raise ValueError("prompts are needed, got none; give --input, or --success, or --successes and --trials")
        result = solve(
            given.get("success"),
            budget,
            method=cast(Method, method),
            estimator=cast(GroupEstimator, estimator),
            low=low,
            high=high,
            successes=given.get("successes"),
            trials=given.get("trials"),
        )
        if out is not None:
            write_counts(out, result.counts, ids)
    settings = {"method": method, "estimator": estimator, "budget": budget}
    typer.echo(allocation_json(settings, result, ids) if as_json else allocation_text(result, ids, sys.stdout.isatty()))


@app.command()
def train(
    config: Annotated[Path | None, typer.Argument(help="TOML; without it the default study.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting.")] = None,
    allocator: Annotated[
        list[str] | None, typer.Option(help="Train only this one and the baseline: an arm, or a registered name.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The folder of the results under runs/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a study that was started.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and print the plan; train nothing.")] = False,
) -> None:
    """Trains a small policy on the CPU under several allocators, and reports how they compare."""
    try:
        study = import_module("apportion.lab.study")  # by name and only here, for torch is an optional extra
    except ImportError as error:
        if str(error.name).startswith("apportion"):
            raise
        missing = f"apportion train needs {error.name}, which is not installed; pip install 'apportion[lab]'"
        raise typer.Exit(_fail(missing if error.name else str(error))) from error
    from apportion.config import ConfigError  # noqa: PLC0415 - pydantic comes with the same extra

    with _usage_errors(ConfigError):
        code = study.run(config, overrides or [], name=name, resume=resume, dry_run=dry_run, allocators=allocator or [])
    raise typer.Exit(code)


@contextmanager
def _usage_errors(kind: type[ValueError]) -> Iterator[None]:
    """Ends the command with code 2 and one line where the user's input is refused."""
    try:
        yield
    except kind as error:
        raise typer.Exit(_fail(str(error))) from error


def _fail(problem: str) -> int:
    typer.echo(f"error: {' '.join(problem.split())}", err=True)
    return USAGE


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--{option} must be numbers separated by commas, got {text!r}; give one a prompt") from None


def _rows(path: Path, method: str, given: list[str]) -> Table:
    """The columns that ``method`` reads, and the ids."""
    if given:
        raise ValueError(f"prompts come from --input or from --{given[0]}, got both; leave one out")
    return read_columns(path, ["successes", "trials"] if method == "hora" else ["success"], ["id"])
