"""What is known of each step of a run: from its rollouts, from what its framework logged, or from both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from apportion.diagnosis.waste import DEAD, KINDS, MIXED, kinds_of
from apportion.records.run_record import RunRecord, ratio
from apportion.records.scalars import Scalars
from apportion.types import Counts, Floats

NAMES = ("reward", "cut", "length", "kl", "entropy")
"""The series that are examined. ``cut`` is the share of truncated completions."""
LEAST_STEPS = 8
"""Least number of steps for a statement about a change."""
LEAST_GROUPS = 8
"""Least number of groups for a statement about all groups."""
LASTING = 0.1
"""Share of the run over which a level must hold, so that single outliers do not count."""
BLOCKS = 8
"""Number of blocks of the run. The first is its start, and the last two are its end."""
NOISES_OF_MEANS = 4.0
"""How many standard errors a change between blocks must be."""
LONG = 16
"""Mean length in tokens from which equal lengths count as a limit. Short answers have few lengths anyway."""
CUT_AT_START = 0.1
"""A limit below ``LONG`` counts only if at most this share of completions had the largest length at the start."""


@dataclass(frozen=True, eq=False)
class Series:
    """Values [S] at rising steps [S]."""

    steps: Counts
    values: Floats

    @property
    def usable(self) -> bool:
        return len(self.steps) >= LEAST_STEPS

    @property
    def start(self) -> float:
        """The mean of the first block."""
        return float(self.blocks[0])

    @property
    def end(self) -> float:
        """The mean of the last two blocks."""
        return float(self.values[self.last :].mean())

    @property
    def last(self) -> int:
        """The step at which the last two blocks begin."""
        return len(self.values) - max(1, 2 * len(self.values) // BLOCKS)

    @cached_property
    def blocks(self) -> Floats:
        """The means of ``BLOCKS`` parts."""
        return np.array([part.mean() for part in np.array_split(self.values, BLOCKS) if len(part)])

    @cached_property
    def lasting(self) -> Floats:
        """The median from each step on, over ``LASTING`` of the run and at least three steps; shorter at the end."""
        width = max(3, math.ceil(LASTING * len(self.values)))
        starts = range(max(1, len(self.values) - width + 1))
        return np.array([np.median(self.values[place : place + width]) for place in starts])

    @property
    def noise(self) -> float:
        """The standard error of one step, from differences of neighbours."""
        return float(np.sqrt((np.diff(self.values) ** 2).mean() / 2)) if len(self.values) > 1 else 0.0

    @property
    def error(self) -> float:
        """The least change from one block to the end that is not noise."""
        return NOISES_OF_MEANS * self.noise * math.sqrt(1.5 * BLOCKS / len(self.values))

    def mean(self, first: Counts, last: Counts) -> Floats:
        """Return the means of the values from each ``first`` to before each ``last``."""
        total = np.r_[0.0, np.cumsum(self.values)]
        return np.asarray((total[last] - total[first]) / (last - first))

    def onset(self, above: float) -> int:
        """Return the first step from which the series stays at ``above`` or more; that of the last blocks if none."""
        found = np.flatnonzero((self.lasting >= above) & (self.values[: len(self.lasting)] >= above))
        return int(self.steps[found[0] if len(found) else self.last])


@dataclass(frozen=True, eq=False)
class RunSeries:
    """The series of a run.

    Args:
        record: its rollouts, or None.
        found: ``NAMES``, and ``dead``, the share of dead groups: finite values only.
        rewards: the trained reward, its parts and other verdicts, by their names.
        logged: series as they were logged, with values that are not finite.
        limit: what completions are cut at.
    """

    record: RunRecord | None
    found: Mapping[str, Series]
    rewards: Mapping[str, Series]
    logged: Mapping[str, Series]
    limit: str

    @classmethod
    def of(cls, record: RunRecord | None, scalars: Scalars | None) -> RunSeries:
        found: dict[str, Series] = {}
        rewards: dict[str, Series] = {}
        logged: dict[str, Series] = {}
        limit = "the limit"
        if scalars is not None:
            found = _constant_length(scalars) | _known({name: scalars.series(name) for name in (*NAMES, "dead")})
            rewards = _known(scalars.components)
            every = {name: scalars.logged(name) for name in ("reward", "kl", "entropy", "loss", "gradient")}
            logged = {name: Series(*own) for name, own in every.items() if own is not None}
        if record is not None and len(record.step):
            dead = np.where(record.dead | record.mixed, record.dead, np.nan)
            own = {"reward": record.reward, "length": record.tokens, "cut": record.truncated}
            means = {name: _means(record, values) for name, values in own.items()}
            found |= _known({**means, "dead": _means(record, dead, of_groups=True)})
            if "cut" not in found:
                cut, limit = _at_largest_length(record)
                found |= cut
            rewards = _known({name: _means(record, each) for name, each in record.components.items()}) or rewards
            logged["reward"] = Series(*means["reward"])
        trained = found.get("reward")
        if trained and not any(np.array_equal(each.values, trained.values) for each in rewards.values()):
            rewards["reward"] = trained
        return cls(record, found, rewards, logged, limit)

    @property
    def first(self) -> int:
        """The first step."""
        return min((int(each.steps[0]) for each in (*self.found.values(), *self.logged.values())), default=0)

    @property
    def steps(self) -> Counts:
        """The step of each group, [N]; none without rollouts."""
        return np.zeros(0, np.int64) if self.record is None else self.record.step

    def usable(self, name: str) -> Series | None:
        """Return a series if it has enough steps for a statement about a change, else None."""
        found = self.found.get(name)
        return found if found is not None and found.usable else None

    def level(self, name: str) -> Series | None:
        """Return a series if it has enough steps, or enough groups of rollouts, for a statement about its level."""
        return self.usable(name) or (self.found.get(name) if len(self.steps) >= LEAST_GROUPS else None)

    def dead_groups(self, onset: int) -> str:
        """Return in words how many groups from ``onset`` on have zero variance, by kind."""
        if self.record is None:
            dead = self.found.get("dead")
            return "the mean reward says so" if dead is None else f"{dead.end:.0%} zero-variance groups"
        kinds = kinds_of(self.record)[self.steps >= onset]
        numbers, counted = np.bincount(kinds, minlength=len(KINDS)), np.isin(kinds, (*DEAD, MIXED)).sum()
        told = [f"{numbers[kind]:,} of {counted:,} groups {KINDS[kind]}" for kind in DEAD if numbers[kind]]
        return f"{' and '.join(told)} (zero-variance groups)"


Means = tuple[Counts, Floats]
"""The steps [S] and the values [S] of a series."""


def _known(means: Mapping[str, Means | None]) -> dict[str, Series]:
    """Return the series at its known steps; None if no value is known."""
    found = ((name, own[0], own[1], ~np.isnan(own[1])) for name, own in means.items() if own is not None)
    return {name: Series(steps[known], values[known]) for name, steps, values, known in found if known.any()}


def _constant_length(scalars: Scalars) -> dict[str, Series]:
    """Return ``cut`` as 1 where the mean length is the largest length, if that is so at half of the steps; else {}."""
    mean, longest = scalars.series("length"), scalars.series("longest")
    if mean is None or longest is None or not np.array_equal(mean[0], longest[0]):
        return {}
    equal = (mean[1] >= LONG) & (mean[1] >= (1 - 1e-6) * longest[1])
    return {"cut": Series(mean[0], equal.astype(np.float64))} if equal.mean() >= 1 / 2 else {}


def _means(record: RunRecord, values: Floats, of_groups: bool = False) -> Means:
    """Return the mean of ``values`` ([R], or [N] if ``of_groups``) at each step; NaN where nothing is known."""
    steps, of = np.unique(record.step, return_inverse=True)
    of, known = of if of_groups else of[record.group], ~np.isnan(values)
    counts = np.bincount(of[known], minlength=len(steps))
    sums = np.bincount(of[known], values[known], len(steps))
    return steps, ratio(sums, counts)


def _at_largest_length(record: RunRecord) -> tuple[dict[str, Series], str]:
    """Return the share of completions that have the largest length, and that length; None if answers are short."""
    longest = np.fmax.reduce(record.tokens, initial=0)
    cut = _known({"cut": _means(record, np.where(np.isnan(record.tokens), np.nan, record.tokens == longest))})
    if cut and longest < LONG and cut["cut"].start > CUT_AT_START:
        cut = {}
    return cut, f"the largest length, {longest:,.0f} tokens"
