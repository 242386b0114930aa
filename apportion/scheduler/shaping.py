"""An alarm for rewards with parts: phantom groups train the shaping of the reward, and the outcome does not rise.

A phantom group has equal outcomes and different rewards, so a group-relative estimator trains its shaping alone. Many
runs have such groups and learn. The alarm needs three things of the latest half of the steps: phantom groups have
``GRADIENT`` of the squared advantages, what the reward has beside the outcome rises, there and over all steps, and the
outcome does not rise in either, or falls in the latest half.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from apportion.types import TIE, Batch, Counts, Floats, Mask

REMEDY = "Gate them by the outcome: outcome_gate=True, or the lines for your trainer in docs/shaped_rewards.md."
LEAST, MOST = 12, 512
"""LEAST steps are needed to tell a trend from noise, and at most the latest MOST steps are examined."""
GRADIENT, RISES, STILL, EVER = 0.25, 3.5, 1.0, 2.5
"""The share of the squared advantages; by how many standard errors shaping rises; up to how many an outcome does not,
in the latest half and over all steps. docs/shaped_rewards.md says on which runs they were set."""


class StepShaping(NamedTuple):
    """One step: the mean ``outcome``, the mean ``rest`` of the reward, and the share of phantom ``groups``.

    ``gradient`` is their share of the squared advantages if each group is divided by its deviation, as in GRPO.
    """

    outcome: float
    rest: float
    groups: float
    gradient: float


def shaping_of(outcomes: Floats, rewards: Floats, group: Counts) -> StepShaping | None:
    """Return the shaping of a step, of ``outcomes``, ``rewards`` and the ``group`` of its rollouts, [R] each.

    Rollouts without either are left out. None without any, and if every reward is the outcome.

    >>> shaping_of(np.array([1.0, 1, 0, 1]), np.array([1.25, 1, 0.25, 1]), np.array([0, 0, 1, 1]))
    StepShaping(outcome=0.75, rest=0.125, groups=0.5, gradient=0.5)
    """
    known = np.isfinite(outcomes + rewards)
    outcomes, rewards, group = outcomes[known], rewards[known], np.unique(group[known], return_inverse=True)[1]
    if (outcomes == rewards).all():
        return None
    spread, mixed, sizes = _differ(rewards, group), _differ(outcomes, group), np.bincount(group)
    phantom, right = spread & ~mixed, float(outcomes.mean())
    gradient = sizes[phantom].sum() / max(1, sizes[spread].sum())
    return StepShaping(right, float((rewards - outcomes).mean()), float(phantom.mean()), float(gradient))


def shaping_of_batch(batch: Batch) -> StepShaping | None:
    """Return the shaping of the rollouts of ``batch`` that have a verdict."""
    rows = [(q, own.correct, own.reward) for q, group in enumerate(batch.rollouts) for own in group]
    group, outcomes, rewards = np.array(rows, np.float64).reshape(-1, 3).T
    return shaping_of(outcomes, rewards, group.astype(np.int64))


@dataclass
class ShapingAlarm:
    """Takes the steps one by one, and reports once why the run is sick."""

    _rows: deque[tuple[float, ...]] = field(default_factory=lambda: deque(maxlen=MOST), repr=False)
    _steps: int = 0
    _told: bool = False

    def add(self, found: StepShaping | None, step: int | None = None) -> str:
        """Return the evidence if the run is sick from this step on; "" if it is not, or was sick before.

        ``found`` is None for a step without shaping. Others are counted from 1 unless ``step`` is given.
        """
        if found is None or self._told:
            return ""
        self._steps += 1
        self._rows.append((self._steps if step is None else step, found.outcome, found.rest, found.gradient))
        if len(self._rows) < LEAST:
            return ""
        rows, size = np.array(self._rows), max(LEAST, len(self._rows) // 2)
        steps, outcome, rest, gradient = rows[-size:].T
        rises, now = min(_rise(rest), _rise(rows[:, 2])) >= RISES, _rise(outcome)
        still = now <= STILL and (now <= -RISES or _rise(rows[:, 1]) <= EVER)
        if gradient.mean() < GRADIENT or not (rises and still):
            return ""
        self._told, half = True, size // 2
        before, after = (f"{part[:half].mean():.3g} to {part[half:].mean():.3g}" for part in (outcome, rest))
        return (
            f"from step {steps[0]:.0f} to {steps[-1]:.0f} groups of equal outcomes have {gradient.mean():.0%} of the "
            f"squared advantages; the outcome went from {before}, the rest of the reward from {after}"
        )


def _differ(values: Floats, group: Counts) -> Mask:
    """Return whether a group has two ``values`` [R] that differ by more than rounding, [groups]."""
    low, high = np.full((2, group.max() + 1), [[np.inf], [-np.inf]])
    np.minimum.at(low, group, values)
    np.maximum.at(high, group, values)
    return np.asarray(high - low > TIE * np.maximum(np.abs(low), np.abs(high)))


def _rise(values: Floats) -> float:
    """Return the slope of ``values`` divided by its standard error; 0 if all are equal."""
    x = np.arange(len(values)) - (len(values) - 1) / 2
    slope = (x @ values) / (x @ x)
    errors = values - values.mean() - slope * x
    noise = math.sqrt((errors @ errors) / (len(values) - 2) / (x @ x))
    return float(slope / noise) if noise else 0.0
