"""``apportion replay``: what a recorded run would have been under other rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from apportion.allocators import ALLOCATORS, Allocator
from apportion.checks import choices
from apportion.cli.errors import usage_errors
from apportion.cli.options import AsJson, Columns, FurtherRules, Rewards, SettingsOfRules, command_of, read_run, several
from apportion.cli.replay_text import replay_json, replay_text
from apportion.config import build
from apportion.predictors import Predictor
from apportion.replay.allocating import Observe
from apportion.replay.replaying import Outcomes, replay
from apportion.runs.waiting import waiting
from apportion.selection import SELECTORS, Selector
from apportion.toml import ConfigError, load
from apportion.untrusted import shown

MOST_ROLLOUTS = 10_000
"""The most rollouts per prompt, because rules that choose prompts hold a number for each."""


def replayed(
    log: Annotated[Path, typer.Argument(help="A rollout log, or a file of group counts.")],
    more: FurtherRules = None,
    reward: Rewards = None,
    column: Columns = None,
    rules: Annotated[
        list[str] | None,
        typer.Option("--rules", metavar="RULE...", help=f"Any of {', '.join([*ALLOCATORS, *SELECTORS])}."),
    ] = None,
    settings: SettingsOfRules = None,
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
    batch: Annotated[int, typer.Option(help="Prompts in a batch, if the log does not say.")] = 128,
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 1,
    full: Annotated[bool, typer.Option("--full", help="Print all columns, which need 160 columns.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what other rules would have done.

    Outcomes are those of a recorded run. Nothing is sampled.
    """

    names = several(rules, more)
    chosen: dict[str, Any] = {"outcomes": outcomes, "observe": observe}
    with usage_errors(ValueError, OSError, ImportError):
        for (option, value), known in zip(chosen.items(), (Outcomes, Observe), strict=True):
            if value not in get_args(known):
                raise ValueError(
                    f"--{option} must be one of {', '.join(get_args(known))}, got {shown(value)}; choose one"
                )
        if not 1 <= seeds <= 100:
            raise ValueError(f"--seeds must be 1 to 100, got {seeds}; 3 are enough for most rules")
        if not log.exists():
            raise ValueError(f"the log must exist, got {shown(str(log))}; give the log first, and then --rules")
        with waiting(f"replaying {log}"):
            record = read_run(log, reward, column)
            size = round(float(record.asked.mean())) if len(record.asked) else 1
            made = rules_of(names, load(None, settings or []), rollouts or size)
            found = replay(
                record,
                made,
                seeds=range(seeds),
                window=window,
                rollouts=rollouts,
                batch=batch,
                allow_missing=allow_missing,
                **chosen,
            )
    typer.echo(replay_json(found) if as_json else replay_text(found, full))


def rules_of(names: Sequence[str], tables: Mapping[str, Any], group_size: int) -> dict[str, Allocator | Selector]:
    """Return the rules with these ``names``, RULE[:PREDICTOR], in their order, each with the settings of its table.

    A table may name the rule of a name of the user's. ``group_size`` is that of rules that choose prompts, if their
    settings leave it open. Raises ValueError for an unknown rule or predictor, and for a wrong setting.

    >>> rules_of(["vip:counts", "wide"], {"wide": {"name": "vip", "high": 16}}, 8)["wide"].high
    16
    """
    unused = [name for name in tables if name not in names]
    if unused:
        raise ConfigError(f"settings must be of a rule that is replayed, got {shown(unused[0])}; name it in --rules")
    return {name: _rule(name, tables.get(name), group_size) for name in dict.fromkeys(names)}


def _rule(name: str, table: Any, group_size: int) -> Allocator | Selector:
    if not isinstance(table, Mapping | None):
        raise ConfigError(f"the settings of {shown(name)} must be a table, got {shown(table)}; write {name}.KEY=VALUE")
    given = dict(table or {})
    known, _, believes = str(given.pop("name", name)).partition(":")
    kinds: dict[str, Any] = {**ALLOCATORS, **SELECTORS}
    if known not in kinds:
        raise ConfigError(f"a rule must have a known name, got {shown(known)}; {choices(known, kinds)}")
    takes = {each.name for each in fields(kinds[known]) if each.init}
    if believes and "predictor" not in takes:
        raise ConfigError(f"{known} takes no predictor, got {shown(believes)}; leave it out")
    if known in SELECTORS and "group_size" in takes:
        given = {"group_size": max(2, group_size), **given}
    rule: Allocator | Selector = build(kinds[known], given, name)
    if (size := getattr(rule, "group_size", 0)) > MOST_ROLLOUTS:
        raise ConfigError(f"{name}.group_size must be at most {MOST_ROLLOUTS:,}, got {size:,}; lower it or --rollouts")
    if not believes:
        return rule
    predictor: Predictor = build(Predictor, {"name": believes}, f"{name}.predictor")  # type: ignore[type-abstract]
    return replace(rule, predictor=predictor)  # type: ignore[type-var]


replay_command = command_of(replayed)
