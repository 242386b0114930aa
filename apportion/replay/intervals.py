"""Bootstrap intervals over prompts, for up to millions of them."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from apportion.types import Counts, Floats

RESAMPLES = 2000
BLOCKS = 2000
"""The most units that are drawn. More prompts are first put into so many random blocks, which keeps the interval."""


class Spanned(NamedTuple):
    """A number with the ends of its interval."""

    value: float
    low: float
    high: float


def mean_over_prompts(values: Floats) -> Spanned:
    """Return the mean of ``values`` [P] with its 95% bootstrap interval over prompts; nan if there are none.

    One prompt has no interval. The interval is that of ``bootstrap_interval``, without the second that importing
    scipy.stats takes.
    """
    if not len(values):
        return Spanned(np.nan, np.nan, np.nan)
    if len(values) > BLOCKS:
        return ratio_over_prompts(values, np.ones(len(values)))
    if len(values) == 1:
        return Spanned(float(values[0]), np.nan, np.nan)
    drawn = values[np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))].mean(axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Spanned(float(values.mean()), float(low), float(high))


def ratio_over_prompts(above: Floats, below: Floats, level: float = 0.95, seed: int = 0) -> Spanned:
    """Return sum(above) / sum(below), both [P], with its bootstrap interval over prompts; nan if that is 0 / 0.

    >>> ratio_over_prompts(np.array([1.0, 3.0]), np.array([2.0, 6.0]))
    Spanned(value=0.5, low=0.5, high=0.5)
    """
    return ratios_over_prompts(np.stack([above, below], axis=1), lambda sums: sums[..., 0] / sums[..., 1], level, seed)


def ratios_over_prompts(
    columns: Floats, statistic: Callable[[Floats], Floats], level: float = 0.95, seed: int = 0
) -> Spanned:
    """Return ``statistic`` of the sums of ``columns`` [P, c] over prompts, with its bootstrap interval over prompts.

    ``statistic`` takes [..., c] and returns [...]. Draws at which it is not defined are left out. One prompt has no
    interval.
    """
    rng = np.random.default_rng(seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(columns.sum(axis=0)))
        units = columns
        if len(columns) > BLOCKS:
            units = per_unit(rng.permutation(len(columns)) % BLOCKS, columns, BLOCKS)
        if len(units) < 2:
            return Spanned(value, np.nan, np.nan)
        rows = rng.integers(len(units), size=(RESAMPLES, len(units))) + len(units) * np.arange(RESAMPLES)[:, None]
        weights = np.bincount(rows.ravel(), minlength=rows.size).reshape(rows.shape).astype(np.float64)
        drawn = np.asarray(statistic(weights @ units))
    drawn = drawn[np.isfinite(drawn)]
    if not len(drawn):
        return Spanned(value, np.nan, np.nan)
    low, high = np.quantile(drawn, ((1 - level) / 2, (1 + level) / 2))
    return Spanned(value, float(low), float(high))


def per_unit(unit: Counts, columns: Floats, units: int) -> Floats:
    """Return the sums [units, c] of the rows of ``columns`` [N, c] over each unit, named by ``unit`` [N]."""
    return np.stack([np.bincount(unit, column, units) for column in columns.T], axis=1)
