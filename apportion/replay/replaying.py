"""Replay rules along a recorded run, and the run itself beside them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from apportion.allocators import Allocator
from apportion.records.run_record import RunRecord
from apportion.replay.allocating import Observe, quiet, replay_allocator
from apportion.replay.cells import Cells
from apportion.replay.choosing import Outcome, choose_along
from apportion.replay.foresight import BATCH, MOST_GROUPS, batches_of, joined, sample_of
from apportion.replay.limits import MOST_MISSING, check_missing, check_recorded, drift, missing
from apportion.replay.population import WINDOW, OutcomePopulation, Source
from apportion.replay.results import AllocatorReplay, Replay, SelectorReplay
from apportion.selection import Selector, ShuffledEpochs

Outcomes = Literal["auto", "pools", "expected"]
"""Where outcomes come from. "auto" is pools if they have nearly all that a rule asks for, and otherwise expected."""


def replay(
    record: RunRecord,
    rules: Mapping[str, Allocator | Selector],
    *,
    outcomes: Outcomes = "auto",
    window: int | None = None,
    rollouts: int | None = None,
    observe: Observe = "own",
    outcome: Outcome = "near",
    batch: int = BATCH,
    seeds: Sequence[int] = (0,),
    allow_missing: bool = False,
) -> Replay:
    """Return the replay of ``record`` under ``rules``, by name. The rules themselves stay unchanged.

    Args:
        record: the run.
        rules: rules that split rollouts, and rules that choose prompts.
        outcomes: where the outcomes of a rule that splits rollouts come from.
        window: visits before and after each group from which outcomes may come too. By default a pool has none, and an
            expectation is over ten visits.
        rollouts: budget per prompt of rules whose settings leave it open; by default the run's mean, rounded.
        observe: what such a rule learns from.
        outcome: which recorded group a prompt gets that a rule chooses.
        batch: prompts in a batch, if the batches of the run are unknown.
        seeds: they order such batches, draw outcomes and break ties.
        allow_missing: whether pools may lack more than a tenth of the rollouts.

    A run of more than 64,000 groups is replayed on a random sample of its prompts, and ``Replay.doubts`` says so.
    Neighbouring steps are then joined, so that a batch has about as many groups as before.

    A rule that needs what was not recorded, or more than the run has, drops out, and ``Replay.dropped`` says why.
    Raises ValueError if all do.

    >>> from apportion import VIP
    >>> from apportion.records import record_of_visits
    >>> record = record_of_visits([[0] * 12, [4] * 12, [1] * 12, [8] * 12], 8, ["a", "b", "c", "d"])
    >>> found = replay(record, {"vip": VIP()}, batch=4)
    >>> found.allocators[0].source, round(found.allocators[0].ratios["variance"].value, 1)
    ('expected', 0.6)
    """
    _check(record, rules, window, rollouts, batch, seeds)
    record = _sampled(record)
    budget = rollouts or max(1, round(float(record.asked.mean())))
    player = _Player(record, window, observe, batch, tuple(seeds), budget, allow_missing)
    found, choosing, dropped = list[AllocatorReplay](), dict[str, Selector](), list[ValueError]()
    for name, rule in rules.items():
        try:
            check_recorded(name, rule, record)
            if isinstance(rule, Selector):
                choosing[name] = rule
            else:
                found.append(player.play(name, rule, outcomes))
        except ValueError as error:
            dropped.append(error)
    if not found and not choosing:
        raise dropped[0]
    expected = player.population("expected", player.labelled)
    certain = expected.variance == 0
    in_windows = any(each.source == "expected" for each in found)
    return Replay(
        name=record.name,
        run=_as_recorded(record, expected, budget),
        allocators=tuple(found),
        selectors=_selections(choosing, record, tuple(seeds), outcome, batch),
        observe=observe,
        outcome=outcome,
        window=window,
        seeds=len(seeds),
        certain=float(certain.mean()),
        certain_size=int(np.median(expected.size[certain])) if certain.any() else 0,
        drift=drift(record, window or WINDOW) if window or (in_windows and window is None) else 0.0,
        dropped=tuple(map(str, dropped)),
        doubts=record.doubts,
    )


def _sampled(record: RunRecord) -> RunRecord:
    """Return the record of a random sample of the prompts with at most 64,000 groups, or ``record`` itself."""
    part = sample_of(record, MOST_GROUPS)
    if part is record:
        return record
    step = part.step.copy()
    if not record.visits:
        for places in joined(batches_of(part), int(np.median([len(each) for each in batches_of(record)]))):
            step[places] = step[places[0]]
    doubt = (
        f"replayed on a random {len(part.ids):,} of {len(np.unique(record.prompt)):,} prompts, because the run has "
        f"{len(record.step):,} groups, and {MOST_GROUPS:,} tell as much"
    )
    return replace(part, step=step, doubts=(*record.doubts, doubt))


@dataclass(eq=False)
class _Player:
    """Replays allocators on one record. Its populations are computed once."""

    record: RunRecord
    window: int | None
    observe: Observe
    batch: int
    seeds: tuple[int, ...]
    budget: int
    allow_missing: bool

    def __post_init__(self) -> None:
        self.labelled = not np.isnan(self.record.reward).all()
        self._populations: dict[tuple[Source, bool], OutcomePopulation] = {}
        self._schedules = {seed: batches_of(self.record, seed, self.batch) for seed in self.seeds}

    def population(self, source: Source, labels: bool) -> OutcomePopulation:
        if (source, labels) not in self._populations:
            make = OutcomePopulation.pools if source == "pools" else OutcomePopulation.expected
            self._populations[source, labels] = make(self.record, labels=labels, window=self.window)
        return self._populations[source, labels]

    def play(self, name: str, rule: Allocator, outcomes: Outcomes) -> AllocatorReplay:
        """Return the replay of ``rule``. Raises ValueError if its budget does not fit, or pools lack too much."""
        try:
            rule = rule.with_budget(self.budget)  # a rule with a budget keeps it
        except ValueError as error:
            raise ValueError(
                f"{name} cannot be replayed with {self.budget} rollouts a prompt: {error}, or leave it out"
            ) from error
        if outcomes == "auto" and not self.record.visits:
            found = self._from(name, rule, "pools")
            if found.missing is None or found.missing.share <= MOST_MISSING:
                return found
        found = self._from(name, rule, "expected" if outcomes == "auto" else outcomes)
        if not (self.allow_missing or outcomes == "auto"):
            check_missing(name, found.missing)
        return found

    def _from(self, name: str, rule: Allocator, source: Source) -> AllocatorReplay:
        population, parts, warnings = self.population(source, rule.needs.labels), [], 0
        for seed in self.seeds:
            fresh = copy.deepcopy(rule)
            with quiet(fresh) as seen:
                parts.append(replay_allocator(fresh, population, self._schedules[seed], seed, self.observe))
            warnings += len(seen)
        cells = Cells.joined(parts)
        return AllocatorReplay(
            name=name,
            source=source,
            cells=cells,
            budget=self.budget,
            groups=len(self.record.step),
            missing=missing(cells, population),
            warnings=warnings,
            closed=rule.one_round and rule.needs.labels,
        )


def _as_recorded(record: RunRecord, population: OutcomePopulation, budget: int) -> AllocatorReplay:
    """Return the run itself, compared with an even split of the rollouts of each of its steps."""
    places, labels = np.flatnonzero(population.size > 0), population.labels
    got = (record.trials if labels else np.diff(record.first))[places]
    drawn = {
        "mixed": np.where(labels, record.mixed[places], np.nan),
        "hits": (record.totals[places] > 0).astype(np.float64),
        "tokens": record.sums(record.tokens)[places],
    }
    batch = np.unique(record.step[places], return_inverse=True)[1]
    cells = Cells.of(population, places, batch, record.asked[places], got, got, labels, drawn)
    return AllocatorReplay(record.name, "recorded", cells, budget, len(record.step))


def _selections(
    rules: Mapping[str, Selector], record: RunRecord, seeds: tuple[int, ...], outcome: Outcome, batch: int
) -> tuple[SelectorReplay, ...]:
    """Return the replays of ``rules`` and of shuffled epochs; nothing if there are no rules."""
    control, found = {ShuffledEpochs.name: ShuffledEpochs()}, list[SelectorReplay]()
    for name, rule in ({**control, **rules, **control} if rules else {}).items():
        choices = tuple(choose_along(copy.deepcopy(rule), record, seed, outcome, batch) for seed in seeds)
        found.append(SelectorReplay.of(name, choices, record, found[0] if found else None))
    return tuple(found)


def _check(
    record: RunRecord,
    rules: Mapping[str, Allocator | Selector],
    window: int | None,
    rollouts: int | None,
    batch: int,
    seeds: Sequence[int],
) -> None:
    if not len(record.step) or not len(record.reward):
        raise ValueError(f"a run must have rollouts to replay, got none in {record.name}; check the log")
    if not rules:
        raise ValueError("rules must name at least one rule, got none; name one, such as vip")
    if not seeds or min(seeds) < 0:
        raise ValueError(f"seeds must be integers from 0 on, got {list(seeds)}; give at least one")
    least: dict[str, tuple[int, int | None]] = {"window": (0, window), "rollouts": (1, rollouts), "batch": (1, batch)}
    for name, (low, value) in least.items():
        if value is not None and value < low:
            raise ValueError(f"{name} must be at least {low}, got {value}; raise it")
