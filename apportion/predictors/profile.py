"""Sums over all prompts as a function of how likely each was believed to succeed: what rare events borrow from.

A prompt that is nearly always right hardly ever shows what its failures are like; other prompts that were believed
equally likely do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from apportion.predictors.base import check_discount
from apportion.types import Floats

EDGE, NODES = 5.0, 41


class Profile:
    """Discounted sums of ``columns`` quantities, kept at nodes on the log-odds and read through a Gaussian kernel.

    ``bandwidth`` is in log-odds. Each ``add`` first multiplies what is there by ``discount``. Ratios of columns are
    kernel averages; beyond the outermost data they stay at its level, since every node has some weight everywhere.
    Success probabilities are cut at log-odds of -5 and 5.

    >>> profile = Profile(columns=2)
    >>> profile.add([0.1, 0.9], [[1, 2.0], [1, 6.0]])
    >>> counts, sums = profile.at([0.01, 0.5, 0.99]).T
    >>> (sums / counts).round(2).tolist()
    [2.0, 4.0, 6.0]
    """

    def __init__(self, columns: int, bandwidth: float = 1.0, discount: float = 1.0) -> None:
        if not 0 < bandwidth < float("inf"):
            raise ValueError(f"bandwidth must be finite and above 0 in log-odds, got {bandwidth}; 1 is usual")
        check_discount(discount, called="the discount of what is pooled")
        self.bandwidth, self.discount = bandwidth, discount
        self.sums = np.zeros((NODES, columns))

    def add(self, success: Any, values: Any) -> None:
        """Adds ``values`` [N, columns], observed where success was believed to be ``success`` [N] beforehand."""
        node = np.rint((_log_odds(success) + EDGE) / (2 * EDGE) * (NODES - 1)).astype(np.int64)
        self.sums *= self.discount
        np.add.at(self.sums, node, np.asarray(values, np.float64))

    def at(self, success: Any) -> Floats:
        """Kernel-weighted sums [P, columns] at ``success`` [P]; all 0 where nothing was ever added."""
        distance = (_log_odds(success)[:, None] - np.linspace(-EDGE, EDGE, NODES)) / self.bandwidth
        weighted: Floats = np.exp(-0.5 * distance**2) @ self.sums
        return weighted


def _log_odds(success: Any) -> Floats:
    p = np.asarray(success, np.float64)
    with np.errstate(divide="ignore"):
        odds: Floats = np.clip(np.log(p) - np.log1p(-p), -EDGE, EDGE)
    return odds
