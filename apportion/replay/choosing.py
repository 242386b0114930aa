"""Replay a selection rule along a recorded run: which groups would it have found, and what would it have missed?

At each step the rule chooses prompts among all of the run. Each of them gets a group that was recorded at about that
time. The rule learns from the groups of the chosen prompts alone.

Note: the recorded policy was trained on what the run chose. So this shows which groups a rule would have found at that
policy, and not what the policy would have become.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

import numpy as np

from apportion.records.run_record import RunRecord
from apportion.replay.foresight import BATCH, batches_of, finished
from apportion.replay.population import WINDOW, OutcomePopulation
from apportion.selection import Selector
from apportion.types import Counts, Floats

Outcome = Literal["near", "same"]
"""The recorded group that a chosen prompt gets: a random one of ten visits around, or the visit at that time."""


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
        """The most steps that a prompt waited for its next choice, counted also from the start and to the end."""
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


def choose_along(
    selector: Selector, record: RunRecord, seed: int = 0, outcome: Outcome = "near", batch: int = BATCH
) -> Choices:
    """Return what ``selector`` chooses along ``record``, each step learning from the chosen groups alone.

    ``batch`` is the number of prompts at a step if the steps of the run are unknown. Raises ValueError if the run has
    fewer prompts than that.
    """
    population = OutcomePopulation.expected(record)
    order, rng = population.order, np.random.default_rng(seed)
    rows, begins, visits = np.unique(record.prompt[order], return_index=True, return_counts=True)
    if record.visits and batch > len(rows):
        raise ValueError(f"a batch must have at most the {len(rows)} prompts of the run, got {batch}; lower --batch")
    prompts = [record.prompts[q] for q in rows]
    chances = population.mixed(np.arange(len(order)), record.trials)
    found: list[tuple[Counts, Counts, float, float, float]] = []
    selector.prepare(prompts, seed)
    for count, reached in _steps(record, batch, rows, visits):
        places = np.array(selector.choose(count), np.int64)
        shown = reached[places]
        if outcome == "near":
            low = np.maximum(0, shown - WINDOW)
            shown = rng.integers(low, np.minimum(visits[places], shown + WINDOW), size=count)
        groups = order[begins[places] + shown]
        selector.observe(finished(record, groups, [prompts[q] for q in places]))
        chance = chances[order[begins + reached]]
        differ = record.mixed[groups][record.trials[groups] > 0]
        share = float(differ.mean()) if len(differ) else np.nan
        found.append((places, groups, share, float(chance[places].mean()), float(np.sort(chance)[-count:].mean())))
    chosen, given, mixed, expected, most = zip(*found, strict=True)
    padded = [np.array(list(zip_longest(*each, fillvalue=-1)), np.int64).T for each in (chosen, given)]
    return Choices(padded[0], padded[1], np.array(mixed), np.array(expected), np.array(most), len(prompts))


def _steps(record: RunRecord, batch: int, rows: Counts, visits: Counts) -> Iterator[tuple[int, Counts]]:
    """Yield for each step how many prompts to choose, and which of its ``visits`` [Q] each prompt has reached, [Q].

    ``rows`` [Q] are the places in the record of the prompts that have a group. If only visits are known, step s of
    batches of B prompts has reached visit s B // Q of every prompt. Otherwise it is the prompt's latest visit so far,
    or its first one.
    """
    if record.visits:
        for step in range(len(record.step) // batch):
            yield batch, np.minimum(step * batch // len(rows), visits - 1)
        return
    reached, place = np.zeros(len(rows), np.int64), np.searchsorted(rows, record.prompt)
    for groups in batches_of(record):
        np.maximum.at(reached, place[groups], record.visit[groups])
        yield len(np.unique(place[groups])), reached.copy()
