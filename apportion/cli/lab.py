"""``apportion lab``: allocators compared on a small policy."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from apportion.cli.errors import missing_extra, usage_errors
from apportion.cli.options import command_of
from apportion.toml import ConfigError


def lab(
    config: Annotated[Path | None, typer.Argument(help="The study's TOML file; by default apportion's own.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting.")
    ] = None,
    allocator: Annotated[
        list[str] | None, typer.Option(help="Train only this one and the baseline: an arm, or a registered name.")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(metavar="gold|none", help="none: learn from votes, without right answers.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="Without labels: the lab's own toy problems, as 7 a+3 b*7 =, in .jsonl, .csv or .parquet."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The folder of the results under runs/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue what was started.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and print the plan; train nothing.")] = False,
) -> None:
    """Compare allocators on a small policy, on the CPU.

    With --labels none the policy learns at test time: the allocators take rewards from votes. The policy is tiny and
    knows the lab's toy problems only, so a file of prompts must hold such problems. Right answers in it are used for
    the report only. For a language model and your own questions, use python -m apportion.trl or apportion vote.
    """
    design = _import("apportion.lab.study.design")  # before torch, so that a refusal comes at once
    with usage_errors(ConfigError):
        study = design.read_study(config, overrides or [], name, resume, allocator or [], labels, prompts)
        pools = design.read_pools(study)
        raise typer.Exit(_import("apportion.lab.command").run_study(study, pools, dry_run))


def _import(module: str) -> Any:
    """Return the module; end the command with one line if an extra is missing."""
    with missing_extra("apportion lab", "lab"):
        return import_module(module)


lab_command = command_of(lab)
