"""An alarm for rewards with parts: phantom groups train the shaping of the reward, and the outcome does not rise.

A phantom group has equal outcomes and different rewards, so a group-relative estimator trains its shaping alone. Many
runs have such groups and learn. The alarm has four conditions, on the latest half of the steps: phantom groups have a
share ``GRADIENT`` of the squared advantages; the rest of the reward, without the outcome, rises there and over all
steps; the rest is lower for right rollouts than for wrong ones of the same group; and the outcome does not rise, there
or over all steps. A fall of the outcome stands for the last two. With few groups a step the third takes more steps.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from apportion.types import TIE, Counts, Floats, Rollout

REMEDY = "Gate them by the outcome: outcome_gate=True, or the lines for your trainer in docs/shaped_rewards.md."
LEAST, MOST = 12, 512
"""LEAST steps are needed to tell a trend from noise, and at most the latest MOST steps are examined."""
GRADIENT, RISES, AGAINST, STILL, EVER, FALLS = 0.25, 3.0, 1.5, 1.0, 2.5, 3.5
"""GRADIENT is a share of the squared advantages, and the others are numbers of standard errors: by how many the rest
rises, its agreement with the outcome is below 0, and the outcome rises at most in the latest half, rises at most over
all steps, and falls. docs/shaped_rewards.md says on which runs they were set."""
DIVIDED = (None, "grpo", "maxrl", "sft")
"""The estimators that divide the spread of a group away. None is a formula of the trainer's own, mostly GRPO."""


class StepShaping(NamedTuple):
    """One step: the mean ``outcome``, the mean ``rest`` of the reward, and the share of phantom ``groups``.

    ``gradient`` is their share of the squared advantages, nan if no group's rewards differ. ``agreement`` is the
    correlation of the rest with the outcome within the other groups, nan if there is none.
    """

    outcome: float
    rest: float
    groups: float
    gradient: float
    agreement: float


def shaping_of(outcomes: Floats, rewards: Floats, group: Counts, estimator: str | None = None) -> StepShaping | None:
    """Return the shaping of a step, of ``outcomes``, ``rewards`` and the ``group`` of its rollouts, [R] each.

    Squared advantages are the squares within groups, which the estimators in ``DIVIDED`` make equal. A baseline from
    history adds the same outcome to all of a phantom group, which is no shaping. Rollouts without either are left out.
    None without any, and if every reward is the outcome.

    >>> shaping_of(np.array([1.0, 1, 0, 1]), np.array([1.25, 1, 0.25, 1]), np.array([0, 0, 1, 1]))
    StepShaping(outcome=0.75, rest=0.125, groups=0.5, gradient=0.5, agreement=-1.0)
    """
    known = np.isfinite(outcomes + rewards)
    outcomes, rewards, group = outcomes[known], rewards[known], np.unique(group[known], return_inverse=True)[1]
    if (outcomes == rewards).all():
        return None
    sizes = np.bincount(group)
    by_reward, by_outcome = (each - (np.bincount(group, each) / sizes)[group] for each in (rewards, outcomes))
    squares, mixed = np.bincount(group, by_reward**2), np.bincount(group, by_outcome**2) > 0
    differ = squares > TIE**2 * np.bincount(group, rewards**2)  # by more than rounding
    phantom, weight = differ & ~mixed, differ * (sizes if estimator in DIVIDED else squares)
    gradient = weight[phantom].sum() / weight.sum() if differ.any() else math.nan
    by_rest = (by_reward - by_outcome) * mixed[group]
    size = math.sqrt((by_outcome @ by_outcome) * (by_rest @ by_rest))
    agreement = by_outcome @ by_rest / size if size > TIE else math.nan
    found = outcomes.mean(), (rewards - outcomes).mean(), phantom.mean(), gradient, agreement
    return StepShaping(*map(float, found))


def shaping_of_groups(groups: Iterable[Sequence[Rollout]], estimator: str | None) -> StepShaping | None:
    """Return the shaping of the rollouts of ``groups`` that have a verdict."""
    rows = [(q, own.correct, own.reward) for q, group in enumerate(groups) for own in group]
    group, outcomes, rewards = np.array(rows, np.float64).reshape(-1, 3).T
    return shaping_of(outcomes, rewards, group.astype(np.int64), estimator)


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
        self._rows.append((self._steps if step is None else step, *found))
        if len(self._rows) < LEAST:
            return ""
        rows, size = np.array(self._rows), max(LEAST, len(self._rows) // 2)
        steps, outcome, rest, _, gradient, agreement = rows[-size:].T
        share, agrees = (each[~np.isnan(each)] for each in (gradient, agreement))
        now, rises = _rise(outcome), min(_rise(rest), _rise(rows[:, 2])) >= RISES
        if not (rises and len(share) and share.mean() >= GRADIENT):
            return ""
        against = len(agrees) > 2 and agrees.mean() <= -AGAINST * agrees.std(ddof=1) / math.sqrt(len(agrees))
        if now > -FALLS and not (against and now <= STILL and _rise(rows[:, 1]) <= EVER):
            return ""
        self._told, half = True, size // 2
        before, after = (f"{part[:half].mean():.3g} to {part[half:].mean():.3g}" for part in (outcome, rest))
        return (
            f"from step {steps[0]:.0f} to {steps[-1]:.0f} groups of equal outcomes have {share.mean():.0%} of the "
            f"squared advantages; the outcome went from {before}, the rest of the reward from {after}"
        )


def _rise(values: Floats) -> float:
    """Return the slope of ``values`` divided by its standard error; 0 if all are equal."""
    x = np.arange(len(values)) - (len(values) - 1) / 2
    slope = (x @ values) / (x @ x)
    errors = values - values.mean() - slope * x
    noise = math.sqrt((errors @ errors) / (len(values) - 2) / (x @ x))
    return float(slope / noise) if noise else 0.0
