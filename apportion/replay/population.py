"""Where the outcomes of a replay come from: the recorded rollouts of a prompt at about the time of a group.

Two ways to draw from them have closed forms here. Pools are drawn from without replacement. In expectation, outcomes
are drawn with replacement from a window of visits, so that the success rate is the mean over the window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

import numpy as np

from apportion.allocators.vip import gradient_noise
from apportion.records.run_record import RunRecord
from apportion.types import TIE, Counts, Floats, Mask

Source = Literal["pools", "expected"]

WINDOW = 5
"""An expectation is over this many visits before a group, and one fewer after it."""
ROUNDING = 1e-9
"""A difference of squares below this share of them is a rounding error, and no variance."""


@dataclass(frozen=True, eq=False)
class OutcomePopulation:
    """The recorded rollouts that represent each group of a record, and what n of them are expected to show.

    Args:
        record: the run.
        source: "pools" draws without replacement, "expected" with replacement.
        before: visits of the same prompt before each group that belong to it; so many there are.
        after: visits after it.
        labels: whether rollouts without a reward are left out.
    """

    record: RunRecord
    source: Source
    before: int
    after: int
    labels: bool = True

    @classmethod
    def pools(cls, record: RunRecord, window: int | None = None, labels: bool = True) -> OutcomePopulation:
        """Return the recorded rollouts of each group, and of ``window`` visits before and after it, by default none."""
        return cls(record, "pools", window or 0, window or 0, labels)

    @classmethod
    def expected(cls, record: RunRecord, labels: bool = True, window: int | None = None) -> OutcomePopulation:
        """Return the population whose outcomes for a group are those of up to ten visits around it, its own included.

        With a ``window`` they are those of its own visit, and of so many visits before and after it.
        """
        around = (WINDOW, WINDOW - 1) if window is None else (window, window)
        return cls(record, "expected", *around, labels)

    @cached_property
    def order(self) -> Counts:
        """The groups by prompt and then by visit, [N]."""
        return np.lexsort((self.record.visit, self.record.prompt))

    @cached_property
    def usable(self) -> Mask:
        """Which rollouts can be drawn, [R]."""
        return ~np.isnan(self.record.reward) if self.labels else np.ones(len(self.record.reward), bool)

    @cached_property
    def verified(self) -> bool:
        """Whether every rollout that can be drawn is right or wrong."""
        return self.record.binary and not np.isnan(self.record.reward[self.usable]).any()

    @cached_property
    def rows(self) -> Counts:
        """The rollouts that can be drawn, ordered by prompt, visit and index in their group."""
        sizes = np.diff(self.record.first)[self.order]
        ends = np.cumsum(sizes)
        every = np.repeat(self.record.first[:-1][self.order] - (ends - sizes), sizes) + np.arange(ends[-1])
        return every[self.usable[every]]

    @cached_property
    def bounds(self) -> tuple[Counts, Counts]:
        """Start and end in ``rows`` of the rollouts that represent each group, [N] each."""
        number = len(self.order)
        place = np.empty(number, np.int64)
        place[self.order] = np.arange(number)
        prompt = self.record.prompt[self.order]
        begins = np.searchsorted(prompt, self.record.prompt, side="left")
        ends = np.searchsorted(prompt, self.record.prompt, side="right")
        cuts = np.r_[0, np.cumsum(self.record.sums(self.usable).astype(np.int64)[self.order])]
        return cuts[np.maximum(begins, place - self.before)], cuts[np.minimum(ends, place + self.after + 1)]

    @cached_property
    def size(self) -> Counts:
        """Number of rollouts that represent each group, [N]."""
        return self.bounds[1] - self.bounds[0]

    @cached_property
    def rate(self) -> Floats:
        """Mean reward of the rollouts that represent each group, [N]; NaN without any.

        It is the success rate of rewards 0 and 1.
        """
        return self._mean(self.record.reward)

    @cached_property
    def variance(self) -> Floats:
        """Variance of the reward of the rollouts that represent each group, [N]: p (1 - p) for rewards of 0 and 1."""
        if self.record.binary:
            return self.rate * (1 - self.rate)
        centre = np.nanmean(self.record.reward) if len(self.rows) else 0.0
        squares = self._mean((self.record.reward - centre) ** 2)
        found = squares - (self.rate - centre) ** 2
        return np.where(found > ROUNDING * squares, found, 0.0)

    @cached_property
    def tokens(self) -> Floats:
        """Mean tokens of a completion, [N]; NaN if unknown."""
        return self._mean(self.record.tokens)

    def none_right(self, groups: Counts, number: Floats | Counts) -> Floats:
        """Return the probability that ``number`` [M] rollouts of each of ``groups`` [M] hold no correct one, [M]."""
        size = self.size[groups]
        wrong = size - np.rint(self.rate[groups] * size).astype(np.int64)
        return self._between(number, lambda whole: self._all_of(wrong, size, whole))

    def mixed(self, groups: Counts, number: Floats | Counts) -> Floats:
        """Return the probability that ``number`` [M] rollouts of each of ``groups`` [M] have different rewards, [M].

        A broken number is an average over the two whole numbers next to it.
        """
        owner, counts = self._values(groups)
        size = self.size[groups]

        def whole(numbers: Counts) -> Floats:
            alike = self._all_of(counts, size[owner], numbers[owner])
            return np.where(numbers < 2, 0.0, 1 - np.bincount(owner, alike, len(groups)))

        return np.clip(self._between(number, whole), 0.0, 1.0)

    def gradient_variance(self, groups: Counts, number: Floats | Counts) -> Floats:
        """Return RLOO's variance from ``number`` [M] rollouts of ``groups`` [M]: 4 v / (n - 1), VIP's Proposition 4.3.

        v is the variance of the reward. It is infinite for a single rollout, unless v is 0.
        """
        return self._between(number, partial(gradient_noise, self.variance[groups]))

    def signal(self, groups: Counts, number: Floats | Counts) -> Floats:
        """Return n v for ``number`` [M] rollouts of ``groups`` [M], with v the variance of the reward.

        Under a loss that weighs rollouts or tokens equally a prompt counts by its rollouts. So the sum of n v, over the
        rollouts of a step, is the expected size of what they teach; 4 v / (n - 1) is for a mean over prompts.
        """
        return number * self.variance[groups]

    def _mean(self, values: Floats) -> Floats:
        low, high = self.bounds
        total = np.r_[0.0, np.cumsum(values[self.rows])]
        found = np.full(len(low), np.nan)
        return np.divide(total[high] - total[low], high - low, out=found, where=high > low)

    def _values(self, groups: Counts) -> tuple[Counts, Counts]:
        """Return the index of the group and the frequency of each distinct reward in ``groups``."""
        size = self.size[groups]
        if self.record.binary:
            right = np.rint(np.nan_to_num(self.rate[groups]) * size).astype(np.int64)
            return np.tile(np.arange(len(groups)), 2), np.r_[right, size - right]
        owner = np.repeat(np.arange(len(groups)), size)
        within = np.arange(len(owner)) - np.repeat(np.cumsum(size) - size, size)
        rewards = self.record.reward[self.rows[np.repeat(self.bounds[0][groups], size) + within]]
        order = np.lexsort((rewards, owner))
        owner, rewards = owner[order], rewards[order]
        apart = np.diff(rewards) > TIE * np.maximum(np.abs(rewards[1:]), np.abs(rewards[:-1]))
        begins = np.flatnonzero(np.r_[True, (np.diff(owner) > 0) | apart])
        return owner[begins], np.diff(np.r_[begins, len(owner)])

    def _all_of(self, count: Counts, size: Counts, number: Counts) -> Floats:
        """Return the probability that ``number`` draws from ``size`` rollouts all fall among ``count`` of them."""
        if self.source == "expected":
            return np.asarray((count / np.maximum(size, 1)) ** number)
        number = np.minimum(number, size)
        logs = np.r_[0.0, np.cumsum(np.log(np.arange(1, int(size.max(initial=0)) + 1)))]  # logarithms of the factorials
        fits, number = number <= count, np.minimum(number, count)
        ways = logs[count] - logs[count - number] - logs[size] + logs[np.maximum(size - number, 0)]
        return np.where(fits, np.exp(ways), 0.0)

    def _between(self, number: Floats | Counts, function: Callable[[Counts], Floats]) -> Floats:
        """Return ``function`` at ``number``. Between whole numbers, interpolate between the two nearest."""
        low = np.floor(number).astype(np.int64)
        found, share = function(low), number - low
        if not share.any():
            return found
        return np.where(share > 0, (1 - share) * found + share * function(low + 1), found)
