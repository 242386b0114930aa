"""Bootstrap intervals over prompts, for up to millions of them."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from apportion.types import Counts, Floats

RESAMPLES = 2000
BLOCKS = 2000
"""Most units that are resampled. More prompts are first put into this many random blocks, which keeps the interval."""
LEVEL = 0.95


class Spanned(NamedTuple):
    """A number with the ends of its interval."""

    value: float
    low: float
    high: float


def share(value: float) -> str:
    """Return a share as a percentage without a minus before 0; "-" if it is not known.

    >>> share(-0.001), share(float("nan"))
    ('0%', '-')
    """
    return "-" if math.isnan(value) else f"{value + 0.0:.0%}".replace("-0%", "0%")


def spanned(value: float, drawn: Floats, level: float = LEVEL) -> Spanned:
    """Return ``value`` with the interval of the ``drawn`` values, leaving out draws for which it is undefined."""
    drawn = drawn[np.isfinite(drawn)]
    low, high = np.quantile(drawn, ((1 - level) / 2, (1 + level) / 2)) if len(drawn) else (np.nan, np.nan)
    return Spanned(float(value), float(low), float(high))


def mean_over_prompts(values: Floats) -> Spanned:
    """Return the mean of ``values`` [P] with its 95% bootstrap interval over prompts; nan if there are none.

    One prompt has no interval. The interval is that of ``bootstrap_interval``, without the second that importing
    scipy.stats takes.
    """
    return ratio_over_prompts(values, np.ones(len(values)))


def ratio_over_prompts(
    above: Floats, below: Floats, level: float = LEVEL, seed: int = 0, resamples: int = RESAMPLES
) -> Spanned:
    """Return sum(above) / sum(below), both [P], with its bootstrap interval over prompts; nan if that is 0 / 0.

    >>> ratio_over_prompts(np.array([1.0, 3.0]), np.array([2.0, 6.0]))
    Spanned(value=0.5, low=0.5, high=0.5)
    """
    columns = np.stack([above, below], axis=1)
    return ratios_over_prompts(columns, lambda sums: sums[..., 0] / sums[..., 1], level, seed, resamples)


def ratios_over_prompts(
    columns: Floats,
    statistic: Callable[[Floats], Floats],
    level: float = LEVEL,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Spanned:
    """Return ``statistic`` of the sums of ``columns`` [P, c] over prompts, with its bootstrap interval over prompts.

    ``statistic`` takes [..., c] and returns [...]. Draws at which it is not defined are left out. One prompt has no
    interval.
    """
    rng, units = np.random.default_rng(seed), columns
    if len(columns) > BLOCKS:
        units = per_unit(rng.permutation(len(columns)) % BLOCKS, columns, BLOCKS)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(columns.sum(axis=0)))
        if len(units) < 2:
            return Spanned(value, np.nan, np.nan)
        return spanned(value, np.asarray(statistic(resampled(rng, len(units), resamples) @ units)), level)


def resampled(generator: Generator, units: int, number: int) -> Floats:
    """Return how often each of so many ``units`` is drawn in ``number`` resamples of them, [number, units]."""
    chosen = generator.integers(units, size=(number, units)) + units * np.arange(number)[:, None]
    return np.bincount(chosen.ravel(), minlength=chosen.size).reshape(chosen.shape).astype(np.float64)


def per_unit(unit: Counts, columns: Floats, units: int) -> Floats:
    """Return the rows of ``columns`` [N, c] summed by unit, [units, c]. ``unit`` [N] has the unit of each row."""
    return np.stack([np.bincount(unit, column, units) for column in columns.T], axis=1)
