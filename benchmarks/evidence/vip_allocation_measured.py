"""VIP's rounding beside the integer optimum, and its counts by p."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from scipy.optimize import minimize

from apportion import Belief, Prompt
from apportion.allocators import VIP, Allocator, InverseAccuracy, InverseVariance
from apportion.allocators.spending import printed
from apportion.allocators.vip import minimise_noise, minimise_variance
from apportion.predictors import UniformPrior
from apportion.types import Batch

EXAMPLE = {"root of a": (2.667, 2.667, 2.667, 10.03), "budget": 22, "low": 3, "high": 12}
PROMPTS, PER_PROMPT, LOW, HIGHS = 5, 8, 3, (12, 24)
INSTANCES = {"rloo": 500, "dr_grpo": 20}
POPULATIONS = {"p uniform": (1.0, 1.0), "p of Beta(.3, .3)": (0.3, 0.3)}
WORSE = 1e-9
RELAXED = 50
GRID = tuple(round(0.02 + 0.04 * i, 2) for i in range(25))


def rounding(estimator, instances=None, highs=HIGHS):
    """Return how Algorithm 2 and our solver compare with brute force, on the example and on random instances."""
    a = np.square(EXAMPLE["root of a"])
    budget, low, high = (EXAMPLE[key] for key in ("budget", "low", "high"))
    every = allocations(len(a), budget, low, high)
    found: dict[str, Any] = {"example": _beside(a, every, budget, low, high, estimator)}
    rng, number = np.random.default_rng(0), instances or INSTANCES[estimator]
    for (population, shape), high in product(POPULATIONS.items(), highs):
        every = allocations(PROMPTS, PER_PROMPT * PROMPTS, LOW, high)
        excess = [
            _beside(4 * p * (1 - p), every, PER_PROMPT * PROMPTS, LOW, high, estimator, p)
            for p in rng.beta(*shape, size=(number, PROMPTS))
        ]
        paper, ours = (np.array([each[key] for each in excess]) for key in ("paper", "ours"))
        found[f"{population}, U = {high}"] = {
            "instances": number,
            "allocations": len(every),
            "paper worse": int((paper > WORSE).sum()),
            "paper's largest excess": float(paper.max()),
            "ours worse": int((ours > WORSE).sum()),
            "not feasible": sum(not each["feasible"] for each in excess),
        }
    return found


def relaxed(number=RELAXED):
    """Return the relative excess of Theorems 5.1 and 5.2 over another solver, and where lambda is not unique."""
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {}
    for estimator in ("rloo", "dr_grpo"):
        excess = []
        for p in rng.random((number, PROMPTS)):
            a, budget, high = 4 * p * (1 - p), PER_PROMPT * PROMPTS, HIGHS[0]
            theirs = float(printed.variance(a, printed.relaxed(a, budget, LOW, high, estimator), estimator).sum())
            best = minimize(
                lambda n, a=a, estimator=estimator: float(printed.variance(a, n, estimator).sum()),
                np.full(PROMPTS, float(PER_PROMPT)),
                method="SLSQP",
                bounds=[(LOW, high)] * PROMPTS,
                constraints={"type": "eq", "fun": lambda n, budget=budget: n.sum() - budget},
                options={"ftol": 1e-14, "maxiter": 500},
            )
            excess.append(theirs / best.fun - 1)
        found[estimator] = {"instances": number, "largest": float(max(excess)), "least": float(min(excess))}
    a, low, high = np.array([1.0, 1e4]), 3, 5  # the first at L, the second at U, for a range of lambda
    sums = {value: float(np.clip(1 + np.sqrt(a / value), low, high).sum()) for value in (1.0, 100.0)}
    return {**found, "sums at lambda 1 and 100": list(sums.values())}


def allocations(prompts, budget, low, high):
    """Return every allocation [M, P] of ``budget`` rollouts with ``low`` to ``high`` for each prompt."""
    first = np.array(list(product(range(low, high + 1), repeat=prompts - 1)), np.int64)
    last = budget - first.sum(1)
    whole = np.column_stack([first, last])
    return whole[(last >= low) & (last <= high)]


def counts_by_p():
    """Return the counts of VIP, inverse accuracy and inverse variance on a grid of p, with 8 rollouts a prompt."""
    p = np.array(GRID)
    prompts = [Prompt(f"{value}") for value in GRID]
    batch = Batch.start(prompts, Belief.from_mean(p, 2.0))
    rules: dict[str, Allocator] = {
        "VIP, RLOO": VIP(rollouts_per_prompt=PER_PROMPT, predictor=UniformPrior()),
        "VIP, Dr. GRPO": VIP(rollouts_per_prompt=PER_PROMPT, estimator="dr_grpo", predictor=UniformPrior()),
        "inverse accuracy": InverseAccuracy(rollouts_per_prompt=PER_PROMPT, low=LOW),
        "inverse variance": InverseVariance(rollouts_per_prompt=PER_PROMPT, low=LOW),
    }
    return {"p": list(GRID), "counts": {name: rule.plan(batch).counts.tolist() for name, rule in rules.items()}}


def _beside(a, every, budget, low, high, estimator, p=None):
    """Return the relative excess over brute force of Algorithm 2 and of ours, and whether the former is feasible."""
    f = (lambda n: (n - 1) / n**2) if estimator == "dr_grpo" else (lambda n: 1 / (n - 1))
    value = np.array([0.0, *(f(n) for n in range(2, high + 1))])
    values = value[every - 1] @ a
    least = values.min()
    paper = printed.rounded(printed.relaxed(a, budget, low, high, estimator), a, budget, low, high, estimator)
    ours = [minimise_noise(a, budget, estimator, low, high)]
    if p is not None:
        ours.append(minimise_variance(p, budget, estimator, low, high))
    return {
        "paper": float(value[paper - 1] @ a / least - 1),
        "ours": max(float(value[each - 1] @ a / least - 1) for each in ours),
        "counts": paper.tolist(),
        "best": every[values.argmin()].tolist(),
        "feasible": bool(paper.sum() == budget and (paper >= low).all() and (paper <= high).all()),
    }
