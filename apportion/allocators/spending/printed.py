"""VIP's own route to whole counts, as its paper prints it, beside the exact ``spend`` that the allocator uses.

Reference: arXiv 2602.01601, Theorem 5.1 (Dr. GRPO), Theorem 5.2 (RLOO) and Algorithm 2. Symbols of the paper used here:
a_q = 4 p_q (1 - p_q), L ``low``, U ``high``, C ``budget``, lambda the multiplier of the budget, n*_q(lambda) the count.

Note: the paper says that lambda* is unique. It is not where the counts at the bounds already sum to C: with
a = (1, 1e-6), L = 3, U = 5 and C = 8 every lambda between the two marginal values gives (5, 3).
Note: Algorithm 2 rounds down and then only adds. Rounding down can leave a prompt with more than its best number: with
the roots of a at 2.667, 2.667, 2.667, 10.03, L = 3, U = 12 and C = 22 it gives (4, 4, 3, 11), and (4, 4, 4, 10) is .37%
better under RLOO. ``spend`` finds the latter.
"""

import numpy as np
from numpy.typing import ArrayLike

from apportion.allocators.spending.solver import check_high
from apportion.checks import check_integer, number_array
from apportion.types import Counts, Floats

BISECTIONS, LEAST = 200, 1e-300
"""BISECTIONS halvings of an interval; LEAST is the least a_q, so that its logarithm is finite."""
LOG_LAMBDA = (-800.0, 50.0)
LARGEST_LOG_RATIO = 100.0
"""Bound on log(a_q / lambda): beyond the cube of any U, where every count is at its upper bound."""
LEAST_ROLLOUTS = {"rloo": 2, "dr_grpo": 3}
"""The least L under which each objective is convex and falls."""


def printed_counts(success: ArrayLike, budget: int, low: int, high: int, estimator: str = "rloo") -> Counts:
    """Return the counts [P] of VIP's Algorithm 2 for prompts of predicted ``success`` [P] and a total of ``budget``.

    Raises ValueError for a success outside [0, 1], a budget outside [P low, P high], and bounds that the theorems do
    not cover: ``low`` is at least 2 for "rloo" and 3 for "dr_grpo".

    >>> printed_counts([0.1, 0.5, 0.9], 24, low=3, high=12).tolist()
    [7, 10, 7]
    """
    p = number_array("success", success)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"success must be [P] and within [0, 1], got {p}; predict a probability for each prompt")
    a = 4 * p * (1 - p)
    return rounded(relaxed(a, budget, low, high, estimator), a, budget, low, high, estimator)


def relaxed(a: Floats, budget: int, low: int, high: int, estimator: str) -> Floats:
    """Return the real counts n*(lambda*) [P] of Theorem 5.1 or 5.2, lambda* by bisection on a logarithmic scale.

    Raises ValueError as ``printed_counts`` does.
    """
    if estimator not in LEAST_ROLLOUTS:
        raise ValueError(f"estimator must be rloo or dr_grpo, got {estimator!r}; the paper has no other theorem")
    low, budget = check_integer("low", low, LEAST_ROLLOUTS[estimator]), check_integer("budget", budget)
    check_high(low, high)
    if not low * len(a) <= budget <= high * len(a):
        raise ValueError(
            f"budget must be between {low * len(a)} and {high * len(a)} for {len(a)} prompts, got {budget}; change the "
            "budget or the bounds"
        )
    log_a = np.log(np.maximum(a, LEAST))
    below, above = LOG_LAMBDA
    for _ in range(BISECTIONS):
        middle = (below + above) / 2
        taken = _counts_at(log_a - middle, low, high, estimator).sum()
        below, above = (middle, above) if taken > budget else (below, middle)
    return _counts_at(log_a - above, low, high, estimator)


def rounded(relaxed_counts: Floats, a: Floats, budget: int, low: int, high: int, estimator: str) -> Counts:
    """Return whole counts [P] by Algorithm 2: round down, then one rollout at a time to the largest incentive."""
    n: Counts = np.clip(np.floor(relaxed_counts + 1e-9).astype(np.int64), low, high)
    incentive = _gain(a, n, high, estimator)
    for _ in range(budget - int(n.sum())):
        q = int(np.argmax(incentive))
        n[q] += 1
        incentive[q] = _gain(a[q : q + 1], n[q : q + 1], high, estimator)[0]
    return n


def variance(a: Floats, n: Floats | Counts, estimator: str) -> Floats:
    """Return f_q(n_q) [P] of section 5.2: a (n - 1) / n^2 for Dr. GRPO, a / (n - 1) for RLOO."""
    n = np.asarray(n, np.float64)
    return a * (n - 1) / n**2 if estimator == "dr_grpo" else a / (n - 1)


def _gain(a: Floats, n: Counts, high: int, estimator: str) -> Floats:
    return np.where(n < high, variance(a, n, estimator) - variance(a, n + 1, estimator), -np.inf)


def _counts_at(log_ratio: Floats, low: int, high: int, estimator: str) -> Floats:
    """Return n*(lambda) [P] from the logarithm of a / lambda [P], equations (7) and (9)."""
    ratio = np.exp(np.minimum(log_ratio, LARGEST_LOG_RATIO))
    if estimator == "rloo":
        return np.clip(1 + np.sqrt(ratio), low, high)
    smaller, larger = np.full_like(ratio, low), np.full_like(ratio, high)
    for _ in range(80):  # (n - 2) / n^3 = lambda / a, which falls from n = 3 on
        middle = (smaller + larger) / 2
        more = ratio * (middle - 2) / middle**3 > 1
        smaller, larger = np.where(more, middle, smaller), np.where(more, larger, middle)
    return (smaller + larger) / 2
