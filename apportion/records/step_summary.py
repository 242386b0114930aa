"""What one step of a run spent, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from apportion.records.run_record import RunRecord
from apportion.types import Counts, Floats, Mask

HARD, EASY = 0.25, 0.75
"""A group is hard below the first mean reward, and easy above the second."""


@dataclass(frozen=True)
class StepSummary:
    """One step: its groups and rollouts, and what came of them.

    ``success`` is the mean reward. ``all_right`` and ``all_wrong`` count groups in which every reward is 1, or 0.
    ``mixed`` is the share of groups whose rewards differ. ``hard``, ``middle`` and ``easy`` are the rollouts that were
    asked for a prompt, by the mean reward of its group. ``written`` is when the step was finished, in seconds since
    1970. Values are None if they are unknown.
    """

    step: int
    groups: int
    rollouts: int
    tokens: int | None
    success: float | None
    all_right: int
    all_wrong: int
    mixed: float | None
    hard: float | None
    middle: float | None
    easy: float | None
    written: float | None


def summaries(record: RunRecord) -> Iterator[StepSummary]:
    """Yield the summary of each step of ``record``."""
    steps, begins = np.unique(record.step, return_index=True)
    for step, begin, end in zip(steps, begins, [*begins[1:], len(record.step)], strict=True):
        yield _summary(int(step), record.of_groups(np.arange(begin, end)))


def _summary(step: int, part: RunRecord) -> StepSummary:
    some, shares = part.trials > 0, part.shares
    tokens, written = part.tokens.sum(), part.written.max()
    least, largest = part.extremes

    def mean(values: Mask | Counts | Floats, chosen: Mask) -> float | None:
        return float(values[chosen].mean()) if chosen.any() else None

    return StepSummary(
        step=step,
        groups=len(part.step),
        rollouts=int(part.asked.sum()),
        tokens=None if np.isnan(tokens) else int(tokens),
        success=mean(part.reward, ~np.isnan(part.reward)),
        all_right=int(((least == 1) & (largest == 1)).sum()),
        all_wrong=int(((least == 0) & (largest == 0)).sum()),
        mixed=mean(part.mixed, some),
        hard=mean(part.asked, some & (shares < HARD)),
        middle=mean(part.asked, some & (shares >= HARD) & (shares <= EASY)),
        easy=mean(part.asked, some & (shares > EASY)),
        written=None if np.isnan(written) else float(written),
    )
