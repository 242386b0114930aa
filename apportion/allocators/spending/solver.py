"""``spend``, the exact solver of every rule with a budget of rollouts, and even splits.

If rollouts have unequal costs, ``knapsack.spend_costs`` takes its place.
"""

from bisect import bisect_right

import numpy as np
from numpy.typing import ArrayLike

from apportion.checks import check_integer, integer_array, number_array
from apportion.types import Counts, Floats


def spend(gains: Floats, budget: int, low: Counts) -> Counts:
    """Return rollouts per prompt [P], at least ``low`` [P], that maximise the total gain.

    ``gains[q, l]`` [P, W] is the gain of prompt q from its rollout number ``low[q] + l + 1``. It must not increase
    along l (diminishing returns), and -inf marks rollouts that the prompt may not have. Then taking the largest gains
    is exactly optimal among integer allocations. No relaxation and no rounding is needed, only a partial sort: O(P W)
    time, and about twice the memory of ``gains``. Equal gains go to the prompt that has received fewest of
    them, then by prompt order.

    Raises ValueError if the budget lies outside ``[low.sum(), low.sum() + rollouts allowed]``, and for gains that are
    NaN or inf.

    Reference: B. Fox, Discrete optimization via marginal analysis, Management Science 13 (1966). It replaces the
    continuous relaxation, bisection and rounding of arXiv 2602.01601 (Theorems 5.1 and 5.2, Algorithm 2).

    >>> spend(np.array([[0.5, 0.1], [0.4, 0.3]]), budget=4, low=np.array([1, 1])).tolist()
    [2, 2]
    """
    gains, low = check_gains(gains, low)
    extra = check_integer("budget", budget) - int(low.sum())
    allowed = np.isfinite(gains).sum(axis=1)
    if not 0 <= extra <= allowed.sum():
        raise ValueError(
            f"budget must be between {low.sum()} and {low.sum() + allowed.sum()} for these {len(low)} prompts, "
            f"got {budget}; change the budget or the bounds"
        )
    if extra == 0:
        return low.copy()
    flat = gains.ravel()
    threshold = np.partition(flat, flat.size - extra)[flat.size - extra]
    above: Counts = (gains > threshold).sum(axis=1)
    ties = (gains == threshold).sum(axis=1)
    return low + above + even_split(extra - int(above.sum()), np.zeros_like(ties), ties)


def check_gains(gains: ArrayLike, low: ArrayLike) -> tuple[Floats, Counts]:
    """Return ``gains`` [P, W] and ``low`` [P] as arrays. Raise ValueError for NaN, inf and other shapes."""
    table, least = number_array("gains", gains), integer_array("low", low)
    if table.ndim != 2 or least.shape != table.shape[:1] or (least < 0).any():
        raise ValueError(
            f"gains must be [P, W] and low [P] of at least 0, got {table.shape} and {least}; give every prompt a row"
        )
    if not table.max(initial=-np.inf) < np.inf:  # NaN, too, is the maximum
        bad = np.flatnonzero(~(table < np.inf).all(axis=1))
        raise ValueError(
            f"gains must be finite, or -inf if not allowed, got {table[bad[0]]} for prompt {bad[0]}; "
            "check the predictions that they come from"
        )
    return table, least


def most_extra(low: Counts, high: int, budget: int) -> int:
    """Return the most rollouts beyond ``low`` [P] that one prompt could get: the width W of the gains for ``spend``."""
    return max(0, min(high - int(low.min(initial=high)), budget - int(low.sum())))


def even_split(budget: int, low: Counts, high: int | Counts) -> Counts:
    """Return ``budget`` rollouts split as evenly as possible: integers [P], at least ``low`` [P], first prompts first.

    ``high`` is one bound for all, or [P]. The budget must lie within the bounds.

    >>> even_split(8, np.array([1, 1, 1]), high=4).tolist(), even_split(9, np.array([5, 1, 1]), high=6).tolist()
    ([3, 3, 2], [5, 2, 2])
    """
    levels = range(int(np.max(high)) + 1)
    level = bisect_right(levels, budget, key=lambda n: int(np.maximum(low, np.minimum(n, high)).sum())) - 1
    counts: Counts = np.maximum(low, np.minimum(level, high))
    at_level = np.flatnonzero((counts == level) & (level < high))
    counts[at_level[: budget - int(counts.sum())]] += 1
    return counts
