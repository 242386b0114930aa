"""``apportion allocate``: a budget of rollouts, split over prompts."""

from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer

from apportion.allocators.vip import GroupEstimator
from apportion.cli.allocation_text import allocation_json, allocation_text
from apportion.cli.errors import usage_errors
from apportion.cli.options import AsJson, command_of
from apportion.solve import METHODS, Method, solve
from apportion.tables import read_columns
from apportion.untrusted import parse_number, shown


def allocate(
    budget: Annotated[int, typer.Option(help="Rollouts in total; for hora, pre-rollouts included.")],
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "vip",
    estimator: Annotated[str, typer.Option(help=f"One of {', '.join(get_args(GroupEstimator))}.")] = "rloo",
    success: Annotated[str | None, typer.Option(help="Success probabilities, separated by commas.")] = None,
    successes: Annotated[str | None, typer.Option(help="For hora: correct pre-rollouts, separated by commas.")] = None,
    trials: Annotated[str | None, typer.Option(help="For hora: all pre-rollouts, separated by commas.")] = None,
    table: Annotated[
        Path | None,
        typer.Option("--input", help=".csv, .jsonl or .parquet with a column success, or successes and trials."),
    ] = None,
    low: Annotated[
        int | None,
        typer.Option(
            help="Fewest rollouts of a prompt; by default 3 for vip, 1 for uniform, pre-rollouts for hora.",
            show_default=False,
        ),
    ] = None,
    high: Annotated[int, typer.Option(help="Most rollouts of a prompt.")] = 64,
    as_json: AsJson = False,
) -> None:
    """Split a budget of rollouts over prompts.

    The split is exactly optimal, given success probabilities or pre-rollouts.
    """
    with usage_errors(ValueError):
        given: dict[str, Any] = {"success": success, "successes": successes, "trials": trials}
        given = {column: _numbers(column, text) for column, text in given.items() if text is not None}
        ids = None
        if table is not None:
            if given:
                raise ValueError(f"prompts come from --input or from --{next(iter(given))}, got both; leave one out")
            rows = read_columns(table, ["successes", "trials"] if method == "hora" else ["success"], ["id"])
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
    settings = {"method": method, "estimator": estimator, "budget": budget}
    typer.echo(allocation_json(settings, result, ids) if as_json else allocation_text(result, ids))


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [parse_number(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"--{option} must be numbers separated by commas, got {shown(text)}; give one a prompt"
        ) from None


allocate_command = command_of(allocate)
