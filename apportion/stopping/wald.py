"""Wald's boundaries of a sequential probability ratio test, for the rules that are one.

Reference: Wald 1945, "Sequential Tests of Statistical Hypotheses", Annals of Mathematical Statistics 16.
"""

from __future__ import annotations

import math


def log_boundaries(alpha: float, beta: float) -> tuple[float, float]:
    """log B and log A, with B = beta / (1 - alpha) < 1 < A = (1 - beta) / alpha, for the two error budgets.

    >>> [round(math.exp(bound), 3) for bound in log_boundaries(0.05, 0.05)]
    [0.053, 19.0]
    """
    return math.log(beta / (1 - alpha)), math.log((1 - beta) / alpha)


def check_error_budgets(alpha: float, beta: float) -> None:
    """Raises ValueError where the boundaries would not enclose 1."""
    if not (alpha > 0 and beta > 0 and alpha + beta < 1):
        raise ValueError(
            f"alpha and beta must be above 0 and below 1 together, got {alpha} and {beta}; "
            "the boundaries would not enclose 1; 0.05 each is usual"
        )
