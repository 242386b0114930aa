"""VIP's own route to an allocation, as the paper writes it (arXiv 2602.01601): Theorems 5.1 and 5.2, Algorithm 2."""

from __future__ import annotations

import numpy as np


def objective(a, n, estimator):
    """Sum of f_q(n_q) of section 5.2, n real or integer."""
    n = np.asarray(n, float)
    return float((a * ((n - 1) / n**2 if estimator == "dr_grpo" else 1 / (n - 1))).sum())


def continuous(a, budget, low, high, estimator):
    """n*(lambda*) [P], real: equations (7) and (9), lambda* by bisection on a logarithmic scale."""
    a = np.maximum(np.asarray(a, float), 1e-300)

    def counts(log_lambda):
        ratio = np.exp(np.log(a) - log_lambda)
        if estimator == "rloo":
            return np.clip(1 + np.sqrt(ratio), low, high)
        return _dr_grpo_counts(ratio, low, high)

    below, above = -800.0, 50.0
    for _ in range(200):
        middle = (below + above) / 2
        below, above = (middle, above) if counts(middle).sum() > budget else (below, middle)
    return counts(above)


def _dr_grpo_counts(ratio, low, high):
    """The n in [low, high] at which (n - 2) / n^3 = lambda / a, by bisection; it decreases for n >= 3."""
    smaller, larger = np.full(len(ratio), float(low)), np.full(len(ratio), float(high))
    for _ in range(80):
        middle = (smaller + larger) / 2
        more = ratio * (middle - 2) / middle**3 > 1
        smaller, larger = np.where(more, middle, smaller), np.where(more, larger, middle)
    return (smaller + larger) / 2


def rounded(continuous_counts, a, budget, low, high, estimator):
    """Algorithm 2: round down, then one rollout at a time to the largest incentive."""
    n = np.clip(np.floor(continuous_counts + 1e-9).astype(int), low, high)
    f = (lambda n: a * (n - 1) / n**2) if estimator == "dr_grpo" else (lambda n: a / (n - 1))
    incentive = np.where(n < high, f(n) - f(n + 1.0), -np.inf)
    for _ in range(budget - int(n.sum())):
        q = int(np.argmax(incentive))
        n[q] += 1
        gain = (f(n) - f(n + 1.0))[q]
        incentive[q] = gain if n[q] < high else -np.inf
    return n


def allocate(success, budget, low, high, estimator):
    a = 4 * np.asarray(success, float) * (1 - np.asarray(success, float))
    return rounded(continuous(a, budget, low, high, estimator), a, budget, low, high, estimator)
