"""Allocation in one call, from probabilities or pre-rollout counts, without a batch or a predictor."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from apportion.allocators.hora import hit_utility, maximise_hits
from apportion.allocators.spending.solver import check_high, even_split
from apportion.allocators.vip import (
    SMALLEST_LOW,
    GroupEstimator,
    check_estimator,
    check_low,
    gradient_variance,
    minimise_variance,
)
from apportion.checks import check_integer, number_array
from apportion.types import ArrayValue, Belief, Counts, Floats
from apportion.untrusted import shown

Method = Literal["uniform", "vip", "hora"]
Measure = Literal["gradient_variance", "expected_hits"]
METHODS: tuple[Method, ...] = ("uniform", "vip", "hora")

USUAL_LOW: dict[Method, int] = {"uniform": 1, "vip": SMALLEST_LOW, "hora": 0}
"""Default of ``low``. Under "hora" pre-rollouts count, so a prompt needs no further ones."""


@dataclass(frozen=True, eq=False, repr=False)
class Solution(ArrayValue):
    """Counts [P], their objective by the method's own ``measure``, and the same for an even split of the budget."""

    counts: Counts
    measure: Measure
    objective: float
    uniform_counts: Counts
    uniform_objective: float


def allocate(
    success: ArrayLike | None,
    budget: int,
    *,
    method: Method = "vip",
    estimator: GroupEstimator = "rloo",
    low: int | None = None,
    high: int = 64,
    successes: ArrayLike | None = None,
    trials: ArrayLike | None = None,
) -> Counts:
    """Return optimal rollouts per prompt: integers [P] that sum to ``budget``, each between ``low`` and ``high``.

    Args:
        success: success probabilities [P]; None for "hora".
        budget: rollouts in total; for "hora" it includes the pre-rollouts, and so do the counts.
        method: "vip" minimises the summed gradient variance of ``estimator`` (arXiv 2602.01601); "hora" maximises the
            expected number of prompts that get a correct answer after their pre-rollouts, under Beta(1, 1) (arXiv
            2605.07114); "uniform" splits evenly.
        low, high: bounds on every prompt's rollouts. By default ``low`` is 3 for "vip", 1 for "uniform", and the
            pre-rollouts of each prompt for "hora".
        successes, trials: correct and all pre-rollouts [P], integers, for "hora" only. A prompt keeps all that it had,
            even if they are more than ``low``.

    Raises ValueError for arguments that do not fit together.

    >>> allocate([0.1, 0.5, 0.9], 24, low=3, high=12).tolist()
    [7, 10, 7]
    >>> allocate(None, 24, method="hora", successes=[0, 2, 4], trials=[4, 4, 4], high=12).tolist()
    [10, 8, 6]
    """
    return solve(
        success, budget, method=method, estimator=estimator, low=low, high=high, successes=successes, trials=trials
    ).counts


def solve(
    success: ArrayLike | None,
    budget: int,
    *,
    method: Method = "vip",
    estimator: GroupEstimator = "rloo",
    low: int | None = None,
    high: int = 64,
    successes: ArrayLike | None = None,
    trials: ArrayLike | None = None,
) -> Solution:
    """Return ``allocate``'s counts with their objective and that of an even split under the same bounds.

    It has the same arguments and raises the same errors.
    """
    if method not in METHODS:
        raise ValueError(
            f"method must be one of {', '.join(METHODS)}, got {shown(method)}; other rules need rollouts to decide"
        )
    check_estimator(estimator)
    low = USUAL_LOW[method] if low is None else _whole("low", low, 1)
    budget, high = _whole("budget", budget), _whole("high", high, 1)
    if high < low:
        raise ValueError(f"high must be at least low, got high {shown(high)} and low {shown(low)}; swap or change them")
    check_high(low, high)
    if method == "hora":
        if success is not None:
            raise ValueError(
                "hora takes no success probabilities, got some; give successes= and trials= of the pre-rollouts"
            )
        return _most_hits(*_pre_rollouts(successes, trials, high), budget, low, high)
    if successes is not None or trials is not None:
        raise ValueError(f"{method} takes no successes and trials, got some; give success=, or use method='hora'")
    if method == "vip":
        check_low(low, estimator)
    return _least_variance(_probabilities(success, method), budget, method, estimator, low, high)


def _least_variance(
    success: Floats, budget: int, method: Method, estimator: GroupEstimator, low: int, high: int
) -> Solution:
    uniform = _even_counts(budget, np.full(len(success), low, np.int64), high)
    counts = uniform if method == "uniform" else minimise_variance(success, budget, estimator, low, high)
    before, after = (float(gradient_variance(success, n, estimator).sum()) for n in (uniform, counts))
    return Solution(counts, "gradient_variance", after, uniform, before)


def _most_hits(successes: Counts, trials: Counts, budget: int, low: int, high: int) -> Solution:
    bounds = np.maximum(trials, low)
    uniform = _even_counts(budget, bounds, high)
    posterior, pending = Belief.uniform(len(trials)).condition(successes, trials), bounds - trials
    counts = maximise_hits(posterior, budget, bounds, high, pending if pending.any() else None)
    before, after = (float(hit_utility(posterior, n - trials).sum()) for n in (uniform, counts))
    return Solution(counts, "expected_hits", after, uniform, before)


def _even_counts(budget: int, bounds: Counts, high: int) -> Counts:
    """Return an even split of ``budget``. Raise ValueError if it does not lie within the bounds."""
    least, most = int(bounds.sum()), high * len(bounds)
    if not least <= budget <= most:
        raise ValueError(
            f"budget must be between {least} and {most} for {len(bounds)} prompts, got {shown(budget)}; "
            "change the budget, low or high"
        )
    return even_split(budget, bounds, high)


def _probabilities(success: ArrayLike | None, method: Method) -> Floats:
    if success is None:
        raise ValueError(
            f"{method} needs success probabilities, got none; give success=, one number in [0, 1] a prompt"
        )
    p = _vector("success", success)
    bad = np.flatnonzero(~((p >= 0) & (p <= 1)))
    if bad.size:
        raise ValueError(
            f"success must be in [0, 1], got {p[bad[0]]} for prompt {bad[0]}; give probabilities, not percentages"
        )
    return p


def _pre_rollouts(successes: ArrayLike | None, trials: ArrayLike | None, high: int) -> tuple[Counts, Counts]:
    if successes is None or trials is None:
        missing = "successes" if successes is None else "trials"
        raise ValueError(
            f"hora needs successes and trials of its pre-rollouts, got no {missing}; give both, one integer a prompt"
        )
    s, t = _vector("successes", successes), _vector("trials", trials)
    if s.shape != t.shape:
        raise ValueError(
            f"successes and trials must be of one length, got {len(s)} and {len(t)}; give one of each a prompt"
        )
    bad = np.flatnonzero(~((s >= 0) & (s <= t) & np.isfinite(t) & (s == np.floor(s)) & (t == np.floor(t))))
    if bad.size:
        q = bad[0]
        raise ValueError(
            f"successes must be integers between 0 and trials, got {s[q]:g} of {t[q]:g} for prompt {q}; count rollouts"
        )
    over = np.flatnonzero(t > high)
    if over.size:
        raise ValueError(
            f"trials must be at most high, got {t[over[0]]:g} for prompt {over[0]} and high {high}; raise high"
        )
    return s.astype(np.int64), t.astype(np.int64)


def _vector(name: str, values: ArrayLike) -> Floats:
    array = number_array(name, values)
    if array.ndim != 1 or not array.size:
        raise ValueError(
            f"{name} must hold at least one prompt, one number each, got shape {array.shape}; give a flat list"
        )
    return array


def _whole(name: str, value: float, least: int = 0) -> int:
    """Return ``value`` as an int. A float is taken if it is whole, as 1e6 is."""
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    return check_integer(name, whole, least, "rollouts are whole")
