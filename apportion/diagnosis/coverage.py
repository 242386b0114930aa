"""Which prompts a run visited, how often, and what became of its rollouts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from apportion.records.run_record import RunRecord


@dataclass(frozen=True)
class RunCoverage:
    """Prompts and rollouts of a run.

    Args:
        prompts, visited: prompts that the record names, and those with a group.
        groups, steps: groups, and steps or visits.
        asked, arrived, rewarded, kept: rollouts asked for, recorded, with a reward, and in the loss.
        visits: least, median and largest number of groups of a visited prompt.
        waits: median, 90% quantile and largest number of steps between two groups of a prompt; None if the steps are
            visits, or no prompt came twice.
        once: prompts with a single group.
        never_right, always_right: prompts without a right, and without a wrong rollout; None for graded rewards.
    """

    prompts: int
    visited: int
    groups: int
    steps: int
    asked: int
    arrived: int
    rewarded: int
    kept: int
    visits: tuple[float, float, float]
    waits: tuple[float, float, float] | None
    once: int
    never_right: int | None
    always_right: int | None


def coverage_of(record: RunRecord) -> RunCoverage:
    """Return which prompts were visited, and how often.

    >>> from apportion.records.reading import record_of_visits
    >>> found = coverage_of(record_of_visits([[0, 0], [4]], 8, ["a", "b"]))
    >>> found.visits, found.once, found.never_right
    ((1.0, 1.5, 2.0), 1, 1)
    """
    visits = record.by_prompt()
    order = np.lexsort((record.step, record.prompt))
    again = np.diff(record.prompt[order]) == 0
    waits = np.diff(record.step[order])[again]
    return RunCoverage(
        prompts=len(record.ids),
        visited=int((visits > 0).sum()),
        groups=len(record.step),
        steps=len(np.unique(record.step)),
        asked=int(record.asked.sum()),
        arrived=len(record.reward),
        rewarded=int(record.trials.sum()),
        kept=int(record.kept.sum()),
        visits=_quantiles(visits[visits > 0], 0, 0.5, 1),
        waits=None if record.visits or not len(waits) else _quantiles(waits, 0.5, 0.9, 1),
        once=int((visits == 1).sum()),
        never_right=int((record.rates == 0).sum()) if record.binary else None,
        always_right=int((record.rates == 1).sum()) if record.binary else None,
    )


def _quantiles(values: np.ndarray, *shares: float) -> tuple[float, float, float]:
    low, middle, high = np.quantile(values, shares).tolist() if len(values) else [np.nan] * 3
    return low, middle, high
