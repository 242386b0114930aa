"""Predicted against observed success: in tenths of the prediction, with intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from apportion.report.curves import Curve, wilson
from apportion.types import Counts, Floats

TENTHS = 10


@dataclass(frozen=True, eq=False)
class Calibration:
    """Groups by tenth of their predicted success, K tenths that have any.

    Args:
        curve: the share of the rollouts that were right [K], at their mean prediction [K].
        groups: number of groups [K].
        error: mean squared difference between the prediction and the outcome: Brier's score if outcomes are rollouts.
        error_name: the name of ``error``.
    """

    curve: Curve
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
    predicted_mean, observed = (np.bincount(tenth, own, minlength=TENTHS) / safe for own in (n * p, t))
    low, high = wilson(observed, _effective(tenth, t, n, cluster, observed, size))
    return Calibration(
        curve=Curve({"": predicted_mean[has]}, observed[has], low[has], high[has]),
        groups=groups[has],
        error=float((t * (1 - p) ** 2 + (n - t) * p**2).sum() / n.sum()),
        error_name="Brier score",
    )


def _effective(tenth: Counts, t: Floats, n: Floats, cluster: Counts, observed: Floats, size: Floats) -> Floats:
    """Return the effective number of rollouts in each tenth [10], at most the actual number."""
    pairs, at = np.unique(tenth * (cluster.max() + 1) + cluster, return_inverse=True)
    own = pairs // (cluster.max() + 1)
    residual = np.bincount(at, t - observed[tenth] * n)
    clusters = np.bincount(own, minlength=TENTHS)
    spread = np.bincount(own, residual**2, minlength=TENTHS) * clusters / np.maximum(clusters - 1, 1)
    binomial = size * observed * (1 - observed)
    effect = np.divide(spread, binomial, out=np.ones(TENTHS), where=binomial > 0)
    return np.asarray(size / np.maximum(effect, 1))
