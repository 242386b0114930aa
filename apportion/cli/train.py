"""``apportion train``: small policies under several allocators, with labels or without."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from apportion.cli.errors import fail, usage_errors


def train(
    config: Annotated[Path | None, typer.Argument(help="TOML; without it the default study.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting.")] = None,
    labels: Annotated[
        str | None, typer.Option(metavar="gold|none", help="none: learn at test time, from votes alone.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="Without labels: prompts to learn on, .jsonl, .csv or .parquet.")
    ] = None,
    allocator: Annotated[
        list[str] | None, typer.Option(help="Train only this one and the baseline: an arm, or a registered name.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The folder of the results under runs/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a study that was started.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and print the plan; train nothing.")] = False,
) -> None:
    """Trains a small policy on the CPU under several allocators, and reports how they compare.

    With --labels none it learns at test time: allocators make pseudo-labels of votes, and right answers, where the file
    of prompts gives them, are for the report alone.
    """
    try:
        study = import_module("apportion.lab.study")  # by name and only here, for torch is an optional extra
    except ImportError as error:
        if str(error.name).startswith("apportion"):
            raise
        missing = f"apportion train needs {error.name}, which is not installed; pip install 'apportion[lab]'"
        raise typer.Exit(fail(missing if error.name else str(error))) from error
    from apportion.config import ConfigError  # noqa: PLC0415 - pydantic comes with the same extra

    with usage_errors(ConfigError):
        code = study.run(
            config,
            overrides or [],
            name=name,
            resume=resume,
            dry_run=dry_run,
            allocators=allocator or [],
            labels=labels,
            prompts=prompts,
        )
    raise typer.Exit(code)
