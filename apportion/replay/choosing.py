"""Replay a selection rule along a recorded run: which groups would it have found, and what would it have missed?

At each step the rule chooses prompts among all of the run. Each of them gets a group that was recorded at about that
time. The rule learns from the groups of the chosen prompts alone.

Note: the recorded policy was trained on what the run chose. So this shows which groups a rule would have found at that
policy, and not what the policy would have become.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from apportion.records.run_record import RunRecord
from apportion.replay.expected import WINDOW
from apportion.replay.foresight import BATCH, finished
from apportion.replay.population import OutcomePopulation
from apportion.selection import Selector
from apportion.types import Counts, Floats

Outcome = Literal["near", "same"]
"""Which recorded group is a chosen prompt's outcome: a random one of ten visits around, or the visit of that time."""


@dataclass(frozen=True, eq=False)
class Choices:
    """What one replay of S steps chose and found.

    Args:
        chosen: [S, B], places of the chosen prompts among those that have a group, -1 beyond the
            number that a step chose.
        shown: [S, B], places in the record of the groups that they got, -1 likewise.
        mixed: [S], share of the chosen groups with different rewards.
        expected: [S], the same in expectation, at success rates in a window of ten visits.
        most: [S], the most that any choice of so many prompts could expect.
        prompts: Q.
    """

    chosen: Counts
    shown: Counts
    mixed: Floats
    expected: Floats
    most: Floats
    prompts: int

    @property
    def regret(self) -> float:
        """The share of mixed groups that is lost, in expectation, to a choice that knows the success rates."""
        return float((self.most - self.expected).mean())

    @property
    def never(self) -> int:
        """The number of prompts that were never chosen."""
        return self.prompts - len(np.unique(self.chosen[self.chosen >= 0]))

    @property
    def longest_wait(self) -> int:
        """The most steps from one choice of a prompt to the next, from before the first step to after the last."""
        steps = len(self.chosen)
        last, longest = np.full(self.prompts, -1), np.zeros(self.prompts, np.int64)
        for step, row in enumerate(self.chosen):
            places = row[row >= 0]
            longest[places] = np.maximum(longest[places], step - last[places])
            last[places] = step
        return int(np.maximum(longest, steps - last).max())

    @property
    def half(self) -> int:
        """The least number of prompts that hold half of all groups."""
        counts = np.sort(np.bincount(self.chosen[self.chosen >= 0], minlength=self.prompts))[::-1]
        return int(np.searchsorted(np.cumsum(counts), counts.sum() / 2)) + 1


@dataclass(frozen=True, eq=False)
class Clock:
    """Which visit of each prompt the run had reached at each step of a selection.

    If only visits are known, step s of batches of B prompts has reached visit s B // Q of every prompt. Otherwise it is
    the prompt's latest visit so far, or its first one.
    """

    record: RunRecord
    batch: int = BATCH

    @cached_property
    def order(self) -> Counts:
        """The groups by prompt and then by visit, [N]."""
        return np.lexsort((self.record.visit, self.record.prompt))

    @cached_property
    def prompts(self) -> Counts:
        """The prompts that have a group: places in the record, [Q]."""
        return np.unique(self.record.prompt)

    @cached_property
    def begins(self) -> Counts:
        """The place in ``order`` of the first visit of each of ``prompts``, [Q]."""
        return np.searchsorted(self.record.prompt[self.order], self.prompts)

    @cached_property
    def visits(self) -> Counts:
        """The number of visits of each of ``prompts``, [Q]."""
        return np.diff(np.r_[self.begins, len(self.order)])

    def steps(self) -> Iterator[tuple[int, Counts]]:
        """Yield for each step how many prompts it chooses, and the visit that each prompt has reached, [Q]."""
        if self.record.visits:
            for step in range(len(self.order) // self.batch):
                yield self.batch, np.minimum(step * self.batch // len(self.prompts), self.visits - 1)
            return
        reached = np.zeros(len(self.prompts), np.int64)
        place = np.searchsorted(self.prompts, self.record.prompt)
        ends = np.flatnonzero(np.diff(self.record.step)) + 1
        for groups in np.split(np.arange(len(self.record.step)), ends):
            np.maximum.at(reached, place[groups], self.record.visit[groups])
            yield len(np.unique(place[groups])), reached.copy()


def choose_along(
    selector: Selector, record: RunRecord, seed: int = 0, outcome: Outcome = "near", batch: int = BATCH
) -> Choices:
    """Return what ``selector`` chooses along ``record``, each step learning from the chosen groups alone.

    ``batch`` is the number of prompts at a step if the steps of the run are unknown. Raises ValueError if the run has
    fewer prompts than that.
    """
    clock = Clock(record, batch)
    prompts, rng, size = [record.prompts[q] for q in clock.prompts], np.random.default_rng(seed), record.trials
    if record.visits and batch > len(prompts):
        raise ValueError(f"a batch must have at most the {len(prompts)} prompts of the run, got {batch}; lower --batch")
    chance = OutcomePopulation.expected(record).mixed(np.arange(len(size)), size)
    rows: list[tuple[Counts, Counts]] = []
    found: list[tuple[float, float, float]] = []
    selector.prepare(prompts, seed)
    for count, reached in clock.steps():
        places = np.array(selector.choose(count), np.int64)
        shown = reached[places]
        if outcome == "near":
            low = np.maximum(0, shown - WINDOW)
            shown = rng.integers(low, np.minimum(clock.visits[places], shown + WINDOW), size=count)
        groups = clock.order[clock.begins[places] + shown]
        selector.observe(finished(record, groups, [prompts[q] for q in places]))
        expected = chance[clock.order[clock.begins + reached]]
        share = record.mixed[groups][size[groups] > 0]
        mixed = float(share.mean()) if len(share) else float("nan")
        rows.append((places, groups))
        found.append((mixed, float(expected[places].mean()), float(np.sort(expected)[-count:].mean())))
    width = max((len(places) for places, _ in rows), default=0)
    chosen, shown_groups = (
        np.array([np.r_[row[k], np.full(width - len(row[k]), -1)] for row in rows], np.int64) for k in (0, 1)
    )
    mixed_share, chance, most = np.array(found).T
    return Choices(chosen, shown_groups, mixed_share, chance, most, prompts=len(prompts))
