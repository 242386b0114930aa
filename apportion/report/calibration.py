"""Predicted against observed success: in tenths of the prediction, with intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from apportion.report.curves import wilson
from apportion.types import Counts, Floats

TENTHS = 10


@dataclass(frozen=True, eq=False)
class Calibration:
    """Groups by tenth of their predicted success, K tenths that have any.

    Args:
        predicted: mean prediction of the rollouts [K].
        observed: share of them that were right [K].
        low, high: its 95% interval [K]; nan if it is unknown.
        groups: number of groups [K].
        error: mean squared difference between the prediction and the outcome: Brier's score if outcomes are rollouts.
        error_name: the name of ``error``.
    """

    predicted: Floats
    observed: Floats
    low: Floats
    high: Floats
    groups: Counts
    error: float
    error_name: str


def calibrate(predicted: Floats, right: Floats, trials: Counts, cluster: Counts) -> Calibration | None:
    """Return the calibration of ``predicted`` [N], of which ``right`` of ``trials`` [N] came true.

    Groups of one ``cluster`` [N], such as those of one prompt, are not independent. So the interval is Wilson's with
    the effective number of rollouts: their number over the design effect, the variance of the share between clusters
    over its binomial one. Returns None without predictions.
    """
    known = ~np.isnan(predicted) & (trials > 0)
    if not known.any():
        return None
    p, t, n, cluster = predicted[known], right[known], trials[known].astype(float), cluster[known]
    tenth = np.clip((p * TENTHS).astype(int), 0, TENTHS - 1)
    groups = np.bincount(tenth, minlength=TENTHS)
    size: Floats = np.bincount(tenth, n, minlength=TENTHS).astype(np.float64)
    has = size > 0
    safe = np.where(has, size, 1)
    observed = np.bincount(tenth, t, minlength=TENTHS) / safe
    low, high = wilson(observed, _effective(tenth, t, n, cluster, observed, size))
    return Calibration(
        predicted=(np.bincount(tenth, n * p, minlength=TENTHS) / safe)[has],
        observed=observed[has],
        low=low[has],
        high=high[has],
        groups=groups[has],
        error=float((t * (1 - p) ** 2 + (n - t) * p**2).sum() / n.sum()),
        error_name="Brier score",
    )


def _effective(tenth: Counts, t: Floats, n: Floats, cluster: Counts, observed: Floats, size: Floats) -> Floats:
    """Return the effective number of rollouts in each tenth [10], at most their number."""
    pairs, at = np.unique(tenth * (cluster.max() + 1) + cluster, return_inverse=True)
    own = pairs // (cluster.max() + 1)
    residual = np.bincount(at, t - observed[tenth] * n)
    clusters = np.bincount(own, minlength=TENTHS)
    spread = np.bincount(own, residual**2, minlength=TENTHS) * clusters / np.maximum(clusters - 1, 1)
    binomial = size * observed * (1 - observed)
    effect = np.divide(spread, binomial, out=np.ones(TENTHS), where=binomial > 0)
    return np.asarray(size / np.maximum(effect, 1))
