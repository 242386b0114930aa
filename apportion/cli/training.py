"""The commands that train: ``apportion lab``, ``apportion trl`` and ``apportion verl``."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from apportion.cli.errors import fail, usage_errors
from apportion.cli.options import DryRun, Name, Overrides, Resume

if TYPE_CHECKING:
    from apportion.trl.jobs.sources import ModelSource


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
        Path | None, typer.Option(help="Without labels: prompts to learn on, .jsonl, .csv or .parquet.")
    ] = None,
    name: Name = None,
    resume: Resume = False,
    dry_run: DryRun = False,
) -> None:
    """Compare allocators on a small policy, on the CPU.

    With --labels none the policy learns at test time: the allocators take rewards from votes. Right answers in the file
    of prompts are used for the report only.
    """
    chosen = {"allocators": allocator or [], "labels": labels, "prompts": prompts}
    _train("lab", config, overrides or [], name=name, resume=resume, dry_run=dry_run, **chosen)


def trl(
    job: Annotated[Path | None, typer.Argument(help="The job's TOML file.")] = None,
    overrides: Overrides = None,
    name: Name = None,
    resume: Resume = False,
    dry_run: DryRun = False,
) -> None:
    """Train a model with TRL as a job's file says.

    The file names the model, the data, the verifier and the allocator.
    """
    sources = {"lab:": _lab_source}
    _train("trl", job, overrides or [], name=name, resume=resume, dry_run=dry_run, sources=sources)


def verl(context: typer.Context) -> None:
    """Train with verl: python -m apportion.verl.

    All arguments are verl's overrides, see apportion verl --help.
    """
    sys.argv[1:] = context.args
    import_module("apportion.verl.__main__").main()


def _lab_source() -> ModelSource:
    from apportion.lab.policy.job_source import LabSource  # noqa: PLC0415 - only jobs that name the lab need it

    return LabSource()


def _train(command: str, config: Path | None, overrides: list[str], **settings: Any) -> None:
    """Run the study or the job; end the command with its exit code, or with one line if an extra is missing."""
    try:
        module = import_module({"lab": "apportion.lab.command", "trl": "apportion.trl.jobs.command"}[command])
    except ImportError as error:
        if str(error.name).startswith("apportion"):
            raise
        missing = f"apportion {command} needs {error.name}, which is not installed; pip install 'apportion[{command}]'"
        raise typer.Exit(fail(missing if error.name else str(error))) from error
    except OSError as error:  # a library of it needs a folder for temporary files
        problem = f"apportion {command} cannot be loaded, got an error of the system ({error}); make room on the disk"
        raise typer.Exit(fail(problem)) from error
    from apportion.config import ConfigError  # noqa: PLC0415 - pydantic comes with the same extra

    with usage_errors(ConfigError):
        code = module.run(config, overrides, **settings)
    raise typer.Exit(code)
