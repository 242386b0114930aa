"""Curves of a run: values along its way, at cumulative rollouts, tokens and hours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from apportion.evaluation import seed_interval
from apportion.records.run_record import ratio
from apportion.types import Floats

COSTS = {"rollouts": "rollouts", "tokens": "completion tokens", "hours": "hours"}
"""The costs that curves are drawn over: keys of ``Curve.x``, and their labels."""

PLACES = 60
"""Number of points of a mean over seeds."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Values [B] at cumulative costs.

    Args:
        x: the place of each value on each of the ``COSTS`` that is known, [B] each, never falling.
        y: the values, nan where there is none.
        low, high: their 95% interval, nan where there is none.
    """

    x: Mapping[str, Floats]
    y: Floats
    low: Floats
    high: Floats


def plain_curve(x: Mapping[str, Floats], y: Floats) -> Curve:
    """Return a curve without intervals."""
    nothing = np.full(len(y), np.nan)
    return Curve(x, y, nothing, nothing)


def share_curve(x: Mapping[str, Floats], count: Floats, of: Floats) -> Curve:
    """Return ``count`` / ``of``, [B] each, with Wilson's interval. It is nan where there is none of ``of``.

    >>> curve = share_curve({}, np.array([5.0]), np.array([10.0]))
    >>> curve.y.tolist(), curve.low.round(3).tolist(), curve.high.round(3).tolist()
    ([0.5], [0.237], [0.763])
    """
    share = ratio(count, of)
    return Curve(x, share, *wilson(share, of))


def wilson(share: Floats, trials: Floats) -> tuple[Floats, Floats]:
    """Return Wilson's 95% interval of shares of ``trials``, which may be fractions; NaN without trials."""
    z = 1.96
    n = np.where(trials > 0, trials, np.nan)
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(np.maximum(share * (1 - share) / n + z**2 / (4 * n**2), 0))
    return np.maximum(middle - half, 0), np.minimum(middle + half, 1)


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Return the mean of the curves of several seeds, at equal rollouts, with Student's interval over seeds.

    It ends where the first of them ends. A single curve is returned as it is. Costs that one of them does not know are
    left out. Intervals of values from 0 to 1 stay between these.
    """
    if len(curves) == 1:
        return curves[0]
    known = [key for key in COSTS if all(key in curve.x for curve in curves)]
    heights = resampled(curves, [curve.y for curve in curves])
    mean, half = seed_interval(heights)
    within = (0.0, 1.0) if heights.min() >= 0 and heights.max() <= 1 else (-np.inf, np.inf)
    return Curve(
        {key: resampled(curves, [curve.x[key] for curve in curves]).mean(axis=0) for key in known},
        mean,
        np.clip(mean - half, *within),
        np.clip(mean + half, *within),
    )


def resampled(curves: Sequence[Curve], values: Sequence[Floats]) -> Floats:
    """Return ``values`` of each seed, [B] each, at 60 equally spaced rollouts that all seeds reached, [S, 60]."""
    ways = [curve.x["rollouts"] for curve in curves]
    places = np.linspace(max(way[0] for way in ways), min(way[-1] for way in ways), PLACES)
    return np.array([np.interp(places, way, own) for way, own in zip(ways, values, strict=True)])
