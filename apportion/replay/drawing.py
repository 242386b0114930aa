"""A sampler for ``collect`` that gives out recorded rollouts, and the fresh prompts of rules that ask for some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

import numpy as np
from numpy.random import Generator

from apportion.records.run_record import RunRecord
from apportion.replay.population import OutcomePopulation
from apportion.types import Counts, Mask, Prompt, Rollout

MOST_DRAWN = 10_000_000
"""Most rollouts that are drawn for a batch at a time, about 3 GiB."""


@dataclass(eq=False)
class Drawing:
    """The outcomes of one batch.

    A pool gives a group's own rollouts first, in recorded order if that is known and otherwise in a random one. Then it
    gives those of the nearest visits. In expectation, each outcome is drawn at random from the window.

    Args:
        population: where the outcomes come from.
        groups: the places of the batch's groups, to which fresh prompts are appended.
        generator: draws.
        recorded_first: whether draws in expectation begin with the recorded rollouts of the group.
    """

    population: OutcomePopulation
    groups: list[int]
    generator: Generator
    recorded_first: bool = False
    _pools: dict[int, Counts] = field(default_factory=dict, init=False)
    _given: dict[int, int] = field(default_factory=dict, init=False)
    _fresh: Iterator[int] = field(init=False)

    def __post_init__(self) -> None:
        self._fresh = fresh_groups(self.population.record, self.groups, self.population.size > 0)

    def __call__(self, prompts: Sequence[Prompt], counts: Counts) -> list[list[Rollout]]:
        """Return up to ``counts`` [P] further rollouts of each prompt; fewer if its pool is exhausted.

        Raises ValueError for more rollouts than fit in memory.
        """
        if (drawn := int(counts.sum())) > MOST_DRAWN:
            raise ValueError(f"a batch must have at most {MOST_DRAWN:,} rollouts, got {drawn:,}; lower the rollouts")
        found = [self._next(place, count) if count else _NONE for place, count in enumerate(counts.tolist())]
        return [[rollout_of(self.population, row) for row in rows.tolist()] for rows in found]

    def source(self, count: int) -> list[Prompt]:
        """Return ``count`` fresh prompts for the batch, from the nearest other groups.

        Raises ValueError if the run has no more prompts.
        """
        taken = list(islice(self._fresh, count))
        if len(taken) < count:
            raise ValueError(
                f"the rule asks for {count} fresh prompts in a batch, got {len(taken)} that are left of the run; "
                "lower its draws, such as max_draws, or replay it on a run with more prompts"
            )
        self.groups += taken
        record = self.population.record
        return [record.prompts[q] for q in record.prompt[taken]]

    def _next(self, place: int, count: int) -> Counts:
        """Return the next ``count`` rows for the prompt at index ``place`` of the batch."""
        given = self._given.get(place, 0)
        self._given[place] = given + count
        if self.population.source == "pools":
            return self._pool(place)[given : given + count]
        first = _NONE
        if self.recorded_first:
            first = self._own(place)[given : given + count]
        low, high = (bound[self.groups[place]] for bound in self.population.bounds)
        if high == low:
            return first
        drawn = low + (self.generator.random(count - len(first)) * (high - low)).astype(np.int64)
        return np.concatenate([first, self.population.rows[drawn]])

    def _own(self, place: int) -> Counts:
        """Return the recorded rows of a prompt, in random order if the order was not recorded."""
        if place not in self._pools:
            rows = own_rows(self.population, self.groups[place])
            self._pools[place] = rows if self.population.record.ordered else self.generator.permutation(rows)
        return self._pools[place]

    def _pool(self, place: int) -> Counts:
        """Return the rows of a prompt's pool: the nearest visits first, an earlier one before a later one."""
        if place not in self._pools:
            group, record = self.groups[place], self.population.record
            low, high = (bound[group] for bound in self.population.bounds)
            rows = self.population.rows[low:high]
            away = record.visit[np.searchsorted(record.first, rows, side="right") - 1] - record.visit[group]
            rows = rows[np.lexsort((rows, away, np.abs(away)))]
            if not record.ordered:
                own = int((away == 0).sum())
                rows[:own] = self.generator.permutation(rows[:own])
            self._pools[place] = rows
        return self._pools[place]


_NONE = np.zeros(0, np.int64)


def own_rows(population: OutcomePopulation, group: int) -> Counts:
    """Return the rollouts of ``group`` that can be drawn, in recorded order."""
    first = population.record.first
    rows = np.arange(first[group], first[group + 1])
    return rows[population.usable[rows]]


def rollout_of(population: OutcomePopulation, row: int) -> Rollout:
    """Return the recorded rollout at ``row``. Its completion is the row, because texts are not held."""
    record = population.record
    reward, tokens, norm, answer = record.reward[row], record.tokens[row], record.score_norm[row], record.answer[row]
    return Rollout(
        correct=bool(reward) if record.binary and reward == reward else None,
        reward=None if reward != reward else float(reward),
        answer=None if answer < 0 else str(answer),
        tokens=None if tokens != tokens else int(tokens),
        score_norm=None if norm != norm else float(norm),
        completion=row,
    )


def fresh_groups(record: RunRecord, groups: Sequence[int], usable: Mask) -> Iterator[int]:
    """Yield the indices of other groups from which fresh prompts for the batch ``groups`` are drawn.

    These are the groups that follow in time, and then the earlier ones, the latest first. If only visits are known they
    are the other groups of the same visit, in a fixed order after the last group of the batch, and then those of later
    and of earlier visits. A prompt comes once, none of the batch, and none without a ``usable`` [N] group.
    """
    last, first, end = max(groups), min(groups), len(record.step)
    order = chain(range(last + 1, end), range(first - 1, -1, -1))
    if record.visits:
        begin, after = (int(np.searchsorted(record.step, record.step[last], side=side)) for side in ("left", "right"))
        at = groups[-1] + 1
        order = chain(range(at, after), range(begin, at), range(after, end), range(begin - 1, -1, -1))
    held = set(record.prompt[list(groups)].tolist())
    for place in order:
        if usable[place] and (prompt := int(record.prompt[place])) not in held:
            held.add(prompt)
            yield place
