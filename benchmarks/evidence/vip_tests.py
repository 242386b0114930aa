"""VIP's statistical tests of its assumptions (arXiv 2602.01601, Appendix B).

VIP assumes that the reward of a rollout is uncorrelated with its gradient (Assumption 4.1(ii)), and that the norms of
the gradient vary equally for all prompts. The paper tests both on 600 questions with 16 rollouts each. A group is the
rollouts of one prompt at one policy. Z is the norm of the score function.

Note: the paper prints a significance level of .5 for Edgington's method and .05 in the text below it. No level decides
anything here.
"""

from __future__ import annotations

import math

import numpy as np
import scipy

from apportion.replay.intervals import per_unit
from apportion.types import Counts, Floats

EXACT_UP_TO = 20


def correlations(group: Counts, first: Floats, second: Floats) -> tuple[Floats, Floats]:
    """Return Pearson's correlation in each group and its two-sided p-value (Appendix B.1).

    ``group`` [R] names the group of each pair, and never falls. Groups of fewer than three pairs, or in which one of
    both is constant, have no correlation and are left out. The p-value is exact if either of both is normal.
    """
    if not len(group):
        return np.zeros(0), np.zeros(0)
    unit, sizes = _units(group)
    pairs = np.stack([first, second], axis=1)
    means = per_unit(unit, pairs, len(sizes)) / sizes[:, None]
    low, high = (each.reduceat(pairs, _starts(group), axis=0) for each in (np.minimum, np.maximum))
    apart = pairs - means[unit]
    products = np.stack([apart[:, 0] * apart[:, 1], apart[:, 0] ** 2, apart[:, 1] ** 2], axis=1)
    both, one, other = per_unit(unit, products, len(sizes)).T
    usable = (sizes >= 3) & (high > low).all(axis=1) & (one * other > 0)
    r = np.clip(both[usable] / np.sqrt(one[usable] * other[usable]), -1, 1)
    freedom = sizes[usable] - 2
    with np.errstate(divide="ignore"):
        t = np.abs(r) * np.sqrt(freedom / (1 - r**2))
    return r, 2 * scipy.special.stdtr(freedom, -t)


def fisher(p_values: Floats) -> tuple[float, float]:
    """Return Fisher's -2 sum(log p) of independent p-values [k], and its p-value (Appendix B.1).

    >>> statistic, p = fisher(np.array([0.5]))
    >>> round(p, 6)
    0.5
    """
    statistic = -2 * float(np.log(np.maximum(p_values, np.finfo(np.float64).tiny)).sum())
    return statistic, float(scipy.special.chdtrc(2 * len(p_values), statistic))


def edgington(p_values: Floats) -> tuple[float, float]:
    """Return the sum of independent p-values [k], and the probability of a smaller one (Appendix B.2).

    The sum has the Irwin-Hall distribution. Its distribution function is exact for k up to 20, where its alternating
    terms still cancel in double precision; above that it is the normal approximation of the paper.

    >>> edgington(np.array([0.5, 0.5]))
    (1.0, 0.5)
    """
    total, k = float(p_values.sum()), len(p_values)
    if k > EXACT_UP_TO:
        return total, float(scipy.special.ndtr((total - k / 2) / math.sqrt(k / 12)))
    if total > k / 2:  # the smaller tail cancels less
        return total, 1 - _irwin_hall(k - total, k)
    return total, _irwin_hall(total, k)


def levene(group: Counts, values: Floats) -> tuple[float, float]:
    """Return Levene's W on distances from the group's median, and its p-value (Appendix B.3).

    ``group`` [R] names the group of each of ``values``, and never falls. Groups of fewer than two are left out.
    """
    group, values = _of_size(group, values, 2)
    unit, sizes = _units(group)
    order = np.lexsort((values, unit))
    starts = np.r_[0, np.cumsum(sizes)[:-1]].astype(np.int64)
    low, high = (starts + ((sizes - 1) // 2).astype(np.int64)), (starts + (sizes // 2).astype(np.int64))
    medians = (values[order][low] + values[order][high]) / 2
    return _one_way(unit, sizes, np.abs(values - medians[unit]))


def obrien(group: Counts, values: Floats) -> tuple[float, float]:
    """Return O'Brien's W, and its p-value (Appendix B.4). Groups of fewer than three are left out.

    The mean of the transformed values of a group is its unbiased sample variance.
    """
    group, values = _of_size(group, values, 3)
    unit, sizes = _units(group)
    means = np.bincount(unit, values) / sizes
    squares = (values - means[unit]) ** 2
    variances = np.bincount(unit, squares) / (sizes - 1)
    n = sizes[unit]
    transformed = ((n - 1.5) * n * squares - 0.5 * variances[unit] * (n - 1)) / ((n - 1) * (n - 2))
    return _one_way(unit, sizes, transformed)


def _units(group: Counts) -> tuple[Counts, Floats]:
    """Return the place of each value's group among the distinct ones, [R], and their sizes, [k]; groups are sorted."""
    starts = _starts(group)
    sizes = np.diff(np.r_[starts, len(group)])
    return np.repeat(np.arange(len(starts)), sizes), sizes.astype(np.float64)


def _starts(group: Counts) -> Counts:
    return np.flatnonzero(np.r_[True, group[1:] != group[:-1]]) if len(group) else np.zeros(0, np.int64)


def _of_size(group: Counts, values: Floats, least: int) -> tuple[Counts, Floats]:
    unit, sizes = _units(group)
    large = sizes[unit] >= least
    return group[large], values[large]


def _one_way(unit: Counts, sizes: Floats, values: Floats) -> tuple[float, float]:
    """Return the F statistic of equal means of ``values`` [R] in k units of these ``sizes`` [k], and its p-value."""
    means = np.bincount(unit, values) / sizes
    between = float(sizes @ (means - values.mean()) ** 2) / (len(sizes) - 1)
    within = float(((values - means[unit]) ** 2).sum()) / (len(values) - len(sizes))
    statistic = between / within if within > 0 else float("inf") if between > 0 else 0.0
    return statistic, float(scipy.special.fdtrc(len(sizes) - 1, len(values) - len(sizes), statistic))


def _irwin_hall(total: float, k: int) -> float:
    """Return the probability that k uniform numbers sum to at most ``total``."""
    terms = ((-1) ** j * math.comb(k, j) * (total - j) ** k for j in range(math.floor(total) + 1))
    return min(1.0, max(0.0, math.fsum(terms) / math.factorial(k)))
