"""``spend``, the exact solver of every rule with a budget of rollouts, and even splits.

If rollouts have unequal costs, ``knapsack.spend_costs`` takes its place.
"""

from bisect import bisect_right
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from apportion.checks import check_integer, integer_array, number_array
from apportion.types import Counts, Floats
from apportion.untrusted import shown

MOST_ROLLOUTS = 10**9
"""The most rollouts of one prompt, small enough for sums over all prompts."""

MOST_CELLS = 2**27
"""Cells [P, W] of the largest table of gains: 1 GiB. Splitting a budget takes about three times that."""


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


def spend_widening(gains: Callable[[int], Floats], budget: int, low: Counts, high: int) -> Counts:
    """Return ``spend``'s counts from a table that is only as wide as the counts need, and not up to ``high``.

    ``gains`` makes the table [P, W] of a given width W. Widening it changes nothing if no prompt has taken all W,
    because no gain beyond is larger. Raises ValueError as ``spend`` and ``check_table`` do.

    >>> falling = lambda width: np.array([[1.0], [2.0]]) / np.arange(1, 1 + width)
    >>> spend_widening(falling, 9, np.array([0, 0]), high=10**9).tolist()
    [3, 6]
    """
    widest, room = most_extra(low, high, budget), budget - int(low.sum())
    width = min(widest, 2 * -(-room // max(1, len(low))))
    while True:
        check_table(len(low), width)
        if width == widest or int(np.minimum(high - low, width).sum()) >= room:
            counts = spend(gains(width), budget, low)
            if width == widest or int((counts - low).max(initial=0)) < width:
                return counts
        width = min(widest, 2 * width)


def check_table(prompts: int, width: int) -> None:
    """Raise ValueError if a table of gains [P, W] of ``prompts`` and ``width`` would not fit in memory."""
    if prompts * width > MOST_CELLS:
        raise ValueError(
            f"prompts x further rollouts of one must be at most {MOST_CELLS:,}, which take 1 GiB, got {prompts:,} x "
            f"{width:,}; lower high or the budget, or split the prompts"
        )


def check_high(low: int, high: int) -> None:
    """Raise ValueError unless ``high`` is at least ``low`` and not beyond all use."""
    if not low <= high <= MOST_ROLLOUTS:
        raise ValueError(
            f"high must be at least {shown(low)}, the least every prompt gets, and at most {MOST_ROLLOUTS}, got "
            f"{shown(high)}; change high"
        )


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
