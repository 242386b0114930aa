"""``apportion replay``: what a recorded run would have been under other rules."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from apportion.allocators import ALLOCATORS
from apportion.cli.errors import usage_errors
from apportion.cli.options import AsJson, Columns, Rewards, read_run, several
from apportion.runs.waiting import waiting
from apportion.selection import SELECTORS
from apportion.toml import load
from apportion.untrusted import one_line, shown


def replay_command(
    log: Annotated[Path, typer.Argument(help="A rollout log, or a file of group counts.")],
    more: Annotated[list[str] | None, typer.Argument(metavar="[RULE]...", help="Further rules.")] = None,
    reward: Rewards = None,
    column: Columns = None,
    rules: Annotated[
        list[str] | None,
        typer.Option("--rules", metavar="RULE...", help=f"Any of {', '.join([*ALLOCATORS, *SELECTORS])}."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="RULE.KEY=VALUE", help="A setting of a rule, such as vip.low=4."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with a table of settings for each rule.")] = None,
    rollouts: Annotated[
        int | None, typer.Option(help="Rollouts per prompt of rules that leave it open; by default the run's.")
    ] = None,
    outcomes: Annotated[str, typer.Option(help="Where outcomes come from: auto, pools or expected.")] = "auto",
    window: Annotated[
        int | None,
        typer.Option(
            help="Visits before and after a group that count too; by default 0 in pools, and 5 in expectation."
        ),
    ] = None,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Replay from pools that lack more than a tenth of the rollouts.")
    ] = False,
    observe: Annotated[str, typer.Option(help="What rules learn from: own or recorded.")] = "own",
    outcome: Annotated[str, typer.Option(help="Which group a chosen prompt gets: near or same.")] = "near",
    batch: Annotated[int, typer.Option(help="Prompts in a batch, if the log does not say.")] = 128,
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 1,
    full: Annotated[bool, typer.Option("--full", help="Print all columns, which need 160 columns.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what other rules would have done.

    Outcomes are those of a recorded run. Nothing is sampled.
    """
    from apportion.cli.replay_rules import rules_of  # noqa: PLC0415 - what it needs is slow to import
    from apportion.cli.replay_text import replay_json, replay_text  # noqa: PLC0415
    from apportion.replay.allocating import Observe  # noqa: PLC0415
    from apportion.replay.choosing import Outcome  # noqa: PLC0415
    from apportion.replay.replaying import Outcomes, replay  # noqa: PLC0415

    names = several(rules, more)
    with usage_errors(ValueError, OSError, ImportError):
        for option, value, known in (
            ("outcomes", outcomes, Outcomes),
            ("observe", observe, Observe),
            ("outcome", outcome, Outcome),
        ):
            if value not in get_args(known):
                raise ValueError(
                    f"--{option} must be one of {', '.join(get_args(known))}, got {shown(value)}; choose one"
                )
        if not 1 <= seeds <= 100:
            raise ValueError(f"--seeds must be 1 to 100, got {seeds}; 3 are enough for most rules")
        if not log.exists():
            raise ValueError(f"the log must exist, got {shown(str(log))}; give the log first, and then --rules")
        with waiting(f"replaying {one_line(str(log))}"):
            record = read_run(log, reward, column)
            size = round(float(record.asked.mean())) if len(record.asked) else 1
            made = rules_of(names, load(config, settings or []), rollouts or size)
            found = replay(
                record,
                made,
                outcomes=cast(Outcomes, outcomes),
                window=window,
                rollouts=rollouts,
                observe=cast(Observe, observe),
                outcome=cast(Outcome, outcome),
                batch=batch,
                seeds=range(seeds),
                allow_missing=allow_missing,
            )
    typer.echo(replay_json(found) if as_json else replay_text(found, sys.stdout.isatty(), full))
