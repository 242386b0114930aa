"""How many groups were dead, because all their rewards were equal."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from apportion.records.run_record import RunRecord
from apportion.replay.intervals import Spanned, per_unit, ratio_over_prompts
from apportion.types import Counts, Floats, Mask

TIME_BINS = 8
KINDS = ("mixed", "all right", "all wrong", "equal", "single", "without reward")
"""What a group can be. ``equal`` is a group of equal graded rewards, ``single`` one with a single reward."""
MIXED, ALL_RIGHT, ALL_WRONG, EQUAL, SINGLE, UNREWARDED = range(len(KINDS))
DEAD = (ALL_RIGHT, ALL_WRONG, EQUAL)
DIFFICULTIES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class GroupTally:
    """Groups of one part of a run.

    ``groups``, ``rollouts`` and ``tokens`` are by kind, in the order of ``KINDS``. ``tokens`` is None if no length is
    known; otherwise it counts the known lengths, and ``lengths_unknown`` the rollouts without one.
    """

    label: str
    groups: tuple[int, ...]
    rollouts: tuple[int, ...]
    tokens: tuple[float, ...] | None
    lengths_unknown: int

    @property
    def compared(self) -> int:
        """Groups with two rewards or more."""
        return sum(self.groups[kind] for kind in (*DEAD, MIXED))

    @property
    def dead_share(self) -> float:
        """Share of dead groups among those with two rewards or more, nan if there are none."""
        return 1 - self.groups[MIXED] / self.compared if self.compared else float("nan")


@dataclass(frozen=True)
class Waste:
    """Dead groups of a run.

    Args:
        whole: all groups.
        dead: share of dead groups among those with two rewards or more; 95% interval by bootstrap over prompts.
        rollouts: share of all rollouts that dead groups took, likewise.
        tokens: share of all known tokens that dead groups took; None if no length is known.
        over_time: ranges of steps, or of visits, with about equally many groups each.
        by_difficulty: groups by the mean reward of their prompt over the whole run; none for graded rewards.
        never_mixed: prompts with at least one group of two rewards or more of which none was mixed.
        compared: prompts with at least one such group.
        never_mixed_rollouts: rollouts that the never mixed prompts took.
    """

    whole: GroupTally
    dead: Spanned
    rollouts: Spanned
    tokens: Spanned | None
    over_time: tuple[GroupTally, ...]
    by_difficulty: tuple[GroupTally, ...]
    never_mixed: int
    compared: int
    never_mixed_rollouts: int


class _GroupColumns(NamedTuple):
    """Kind, rollouts, known tokens, and rollouts of unknown length of each group, [N] each."""

    kinds: Counts
    sizes: Floats
    tokens: Floats
    unknown: Floats


def _columns(record: RunRecord) -> _GroupColumns:
    tokens, missing = record.sums(np.nan_to_num(record.tokens)), record.sums(np.isnan(record.tokens))
    return _GroupColumns(kinds_of(record), np.diff(record.first).astype(np.float64), tokens, missing)


def kinds_of(record: RunRecord) -> Counts:
    """Return the kind of each group, [N], as an index into ``KINDS``.

    If all rewards lie in [0, 1], 1 is right and 0 wrong.
    """
    least, largest = record.extremes
    within = least.min(initial=0) >= 0 and largest.max(initial=1) <= 1
    equal = np.select([within & (largest == 1), within & (largest == 0)], [ALL_RIGHT, ALL_WRONG], EQUAL)
    return np.select([record.trials == 0, record.trials == 1, record.mixed], [UNREWARDED, SINGLE, MIXED], equal)


def waste_of(record: RunRecord) -> Waste:
    """Return what dead groups took from a run.

    >>> from apportion.records.reading import record_of_visits
    >>> found = waste_of(record_of_visits([[0, 0], [4, 8]], 8, ["a", "b"]))
    >>> found.dead.value, found.whole.groups, found.never_mixed
    (0.75, (1, 1, 2, 0, 0, 0), 1)
    """
    groups = _columns(record)
    kinds, sizes, tokens = groups.kinds, groups.sizes, groups.tokens
    dead, counted = np.isin(kinds, DEAD), (kinds <= EQUAL)
    columns = np.stack([dead, counted, dead * sizes, sizes, dead * tokens, tokens], axis=1).astype(np.float64)
    by_prompt = per_unit(record.prompt, columns, len(record.ids))
    by_prompt = by_prompt[record.by_prompt() > 0]
    mixed, compared = (record.by_prompt(each) > 0 for each in (kinds == MIXED, counted))
    never = compared & ~mixed
    return Waste(
        whole=_tally(groups, np.ones(len(kinds), bool), "all"),
        dead=ratio_over_prompts(by_prompt[:, 0], by_prompt[:, 1]),
        rollouts=ratio_over_prompts(by_prompt[:, 2], by_prompt[:, 3]),
        tokens=None if np.isnan(record.tokens).all() else ratio_over_prompts(by_prompt[:, 4], by_prompt[:, 5]),
        over_time=tuple(_tally(groups, part, label) for label, part in time_bins(record)),
        by_difficulty=tuple(_by_difficulty(record, groups)) if record.binary else (),
        never_mixed=int(never.sum()),
        compared=int(compared.sum()),
        never_mixed_rollouts=int(sizes[never[record.prompt]].sum()),
    )


def time_bins(record: RunRecord) -> list[tuple[str, Mask]]:
    """Return ranges of consecutive steps with about equally many groups each: their labels and masks [N]."""
    if not len(record.step):
        return []
    steps, groups = np.unique(record.step, return_counts=True)
    middle = np.cumsum(groups) - groups / 2
    which = np.minimum((middle * TIME_BINS / len(record.step)).astype(int), TIME_BINS - 1)
    found = []
    for part in np.unique(which):
        low, high = int(steps[which == part][0]), int(steps[which == part][-1])
        mask = (record.step >= low) & (record.step <= high)
        found.append((str(low) if low == high else f"{low} to {high}", mask))
    return found


def _by_difficulty(record: RunRecord, groups: _GroupColumns) -> list[GroupTally]:
    rate = record.rates[record.prompt]
    parts = [("0", rate == 0)]
    for low, high in pairwise(DIFFICULTIES):
        inside = (rate > low) & ((rate <= high) if high < 1 else (rate < 1))
        parts.append((f"{low:g} to {high:g}", inside))
    parts.append(("1", rate == 1))
    return [_tally(groups, part, label) for label, part in parts if part.any()]


def _tally(groups: _GroupColumns, part: Mask, label: str) -> GroupTally:
    kinds, sizes, tokens = groups.kinds[part], groups.sizes[part], groups.tokens[part]
    unknown, size = groups.unknown[part].sum(), len(KINDS)
    return GroupTally(
        label,
        tuple(np.bincount(kinds, minlength=size).tolist()),
        tuple(np.bincount(kinds, sizes, size).astype(np.int64).tolist()),
        tuple(np.bincount(kinds, tokens, size).tolist()) if unknown < sizes.sum() else None,
        int(unknown),
    )
