"""The commands that train: ``apportion lab`` and ``apportion verl``."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from apportion.cli.errors import missing_extra, usage_errors
from apportion.cli.options import DryRun, Name, Overrides, Resume, command_of
from apportion.toml import ConfigError


class UnreadArguments(TyperCommand):
    """A command that leaves all its arguments to the function, also ``--help`` and ``--``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the arguments in the context."""
        ctx.args = args
        return args


def lab(
    config: Annotated[Path | None, typer.Argument(help="The study's TOML file; by default apportion's own.")] = None,
    overrides: Overrides = None,
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
    name: Name = None,
    resume: Resume = False,
    dry_run: DryRun = False,
) -> None:
    """Compare allocators on a small policy, on the CPU.

    With --labels none the policy learns at test time: the allocators take rewards from votes. The policy is tiny and
    knows the lab's toy problems only, so a file of prompts must hold such problems. Right answers in it are used for
    the report only. For a language model and your own questions, use python -m apportion.trl or apportion vote.
    """
    design = _import("lab", "apportion.lab.study.design")  # before torch, so that a refusal comes at once
    with usage_errors(ConfigError):
        study = design.read_study(config, overrides or [], name, resume, allocator or [], labels, prompts)
        pools = design.read_pools(study)
        raise typer.Exit(_import("lab", "apportion.lab.command").run_study(study, pools, dry_run))


def verl(context: typer.Context) -> None:
    """Train with verl: python -m apportion.verl.

    All arguments are verl's overrides, see apportion verl --help.
    """
    sys.argv[1:] = context.args
    import_module("apportion.verl.__main__").main()


def _import(command: str, module: str) -> Any:
    """Return the module; end the command with one line if an extra is missing."""
    with missing_extra(f"apportion {command}", command):
        return import_module(module)


lab_command = command_of(lab)
verl_command = command_of(verl, kind=UnreadArguments)
