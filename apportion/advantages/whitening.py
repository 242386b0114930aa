"""Whitening: mean 0 and variance 1 over all the tokens of a batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from apportion.types import Floats

EPSILON = 1e-8
"""Added to the variance, as in verl."""


def whiten(values: ArrayLike, weights: ArrayLike) -> Floats:
    """(values - mean) / sqrt(variance + 1e-8), of the same shape, 0 where the weight is 0; exactly 0 if all are equal.

    ``weights`` are how often each value counts: a mask [N, T] of tokens, or the number of tokens [N] of each rollout.
    With a mask it equals verl's ``masked_whiten`` within the mask.

    >>> whiten([[1.0, 3.0, 9.0]], [[1, 1, 0]]).round(3).tolist(), whiten([1.0, 3.0], [3, 1]).round(3).tolist()
    ([[-0.707, 0.707, 0.0]], [-0.5, 1.5])
    """
    differences, deviation = moments(values, weights)
    return differences / deviation


def moments(values: ArrayLike, weights: ArrayLike) -> tuple[Floats, float]:
    """Differences from the weighted mean, 0 where the weight is 0, and sqrt(variance + 1e-8) with n - 1 for n."""
    values, weights = np.asarray(values, np.float64), np.asarray(weights, np.float64)
    if values.shape != weights.shape or not ((weights >= 0) & np.isfinite(weights)).all():
        raise ValueError(
            f"weights must be at least 0, one for each of {values.shape} values, got {weights.shape}; "
            "give a mask or numbers of tokens"
        )
    counted, total = weights > 0, weights.sum()
    # Off the first value, whatever it is: then equal values leave exactly 0, where their mean might not.
    shifted = np.where(counted, values - values[counted][:1].sum(), 0.0)
    differences = np.where(counted, shifted - (shifted * weights).sum() / max(total, 1.0), 0.0)
    variance = (differences**2 * weights).sum() / max(total - 1.0, 1.0)
    return differences, float(np.sqrt(variance + EPSILON))
