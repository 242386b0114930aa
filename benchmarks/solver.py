"""Time the exact integer solver, the paper's route and SLSQP on the same probabilities, in one process on one thread.

The paper's route (arXiv 2602.01601) is the tests' reference: the relaxation by bisection (Theorems 5.1 and 5.2), then
Algorithm 2, which looks at every prompt for each rollout that it deals. The same rounding with a heap runs too, so that
the comparison is not with a slow loop alone. SLSQP solves the same relaxation and is rounded by Algorithm 2.

    python -m benchmarks.solver
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import heapq
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from apportion.allocators import printed_counts
from apportion.allocators.hora import maximise_hits
from apportion.allocators.spending import printed
from apportion.allocators.vip import GroupEstimator, minimise_variance
from apportion.types import Belief, Counts, Floats
from benchmarks.common import options, peak_mib, write

SIZES = (512, 1_000_000)
PER_PROMPT, LOW, HIGH, PRE_ROLLOUTS, SEED = 8, 3, 64, 4, 0
ESTIMATOR: GroupEstimator = "rloo"
COLUMNS = ["prompts P", "solver", "milliseconds: median (least to most)", "peak MiB"]


@dataclass(frozen=True)
class Problem:
    """Success probabilities [P], the budget, and Beta posteriors after ``PRE_ROLLOUTS`` of each prompt."""

    success: Floats
    budget: int
    posterior: Belief


def draw(prompts, generator):
    """Draw a U-shaped population, as of a data set that a policy half masters."""
    success = generator.beta(0.7, 0.9, prompts)
    posterior = Belief.uniform(prompts).condition(
        generator.binomial(PRE_ROLLOUTS, success), np.full(prompts, PRE_ROLLOUTS)
    )
    return Problem(success, PER_PROMPT * prompts, posterior)


def ours(problem):
    return minimise_variance(problem.success, problem.budget, ESTIMATOR, LOW, HIGH)


def paper(problem):
    return printed_counts(problem.success, problem.budget, LOW, HIGH, ESTIMATOR)


def paper_with_heap(problem):
    """Solve by the paper's route with the incentives of Algorithm 2 in a heap."""
    a = 4 * problem.success * (1 - problem.success)
    counts = printed.relaxed(a, problem.budget, LOW, HIGH, ESTIMATOR)
    counts = np.clip(np.floor(counts + 1e-9).astype(int), LOW, HIGH)
    incentives = (-a * (1 / (counts - 1) - 1 / counts)).tolist()
    heap = [(incentive, q) for q, incentive in enumerate(incentives) if counts[q] < HIGH]
    heapq.heapify(heap)
    for _ in range(problem.budget - int(counts.sum())):
        _, q = heap[0]
        counts[q] += 1
        n = int(counts[q])
        if n < HIGH:
            heapq.heapreplace(heap, (-a[q] * (1 / (n - 1) - 1 / n), q))
        else:
            heapq.heappop(heap)
    return counts


def slsqp(problem):
    """Solve by scipy's SLSQP on the relaxation, with exact derivatives, from uniform counts; then by Algorithm 2."""
    a = 4 * problem.success * (1 - problem.success)
    found = minimize(
        lambda n: float((a / (n - 1)).sum()),
        np.full(len(a), float(PER_PROMPT)),
        jac=lambda n: -a / (n - 1) ** 2,
        method="SLSQP",
        bounds=[(LOW, HIGH)] * len(a),
        constraints={"type": "eq", "fun": lambda n: n.sum() - problem.budget, "jac": np.ones_like},
        options={"maxiter": 200, "ftol": 1e-9},
    )
    return printed.rounded(found.x, a, problem.budget, LOW, HIGH, ESTIMATOR)


def hits(problem):
    granted = np.full(len(problem.success), PRE_ROLLOUTS)
    return maximise_hits(problem.posterior, problem.budget, granted, HIGH)


SOLVERS: dict[str, tuple[Callable[[Problem], Counts], int]] = {
    "ours, rloo": (ours, SIZES[-1]),
    "paper, rloo": (paper, 10_000),
    "paper with a heap, rloo": (paper_with_heap, SIZES[-1]),
    "SLSQP, rloo": (slsqp, 1_000),
    "ours, hit utility": (hits, SIZES[-1]),
}
"""Each solver and the most prompts that it takes in less than a minute. Ours is first, so it warms up no cache."""


def measure(prompts, repeats):
    """Return the table rows of one size."""
    problem = draw(prompts, np.random.default_rng(SEED))
    running = {name: solve for name, (solve, most) in SOLVERS.items() if prompts <= most}
    seconds: dict[str, list[float]] = {name: [] for name in running}
    for repeat in range(repeats):
        for name, solve in running.items():
            if repeat >= 3 and seconds[name][-1] > 2:  # three calls of a slow one are enough
                continue
            start = time.process_time()
            solve(problem)
            seconds[name].append(time.process_time() - start)
    rows = []
    for name, solve in running.items():
        memory = peak_mib(lambda solve=solve: solve(problem))[0]
        rows.append([f"{prompts:,}", name, shown(seconds[name]), f"{memory:,.1f}"])
        print(rows[-1], flush=True)
    return rows


def shown(seconds):
    """Return milliseconds: their median, least and most."""
    return "{:,.2f} ({:,.2f} to {:,.2f})".format(
        *(1e3 * each for each in (statistics.median(seconds), min(seconds), max(seconds)))
    )


def main():
    arguments = options(__doc__, sizes=SIZES, repeats=15)
    rows = []
    for prompts in arguments.sizes:
        rows += measure(prompts, arguments.repeats if prompts < 200_000 else 5)
    write(
        "solver",
        "Allocation: the exact solver and its rivals",
        COLUMNS,
        rows,
        [
            f"Success probabilities from Beta(0.7, 0.9), {PER_PROMPT} rollouts a prompt, between {LOW} and {HIGH}; the "
            f"hit utility after {PRE_ROLLOUTS} pre-rollouts. One thread, processor time, all solvers in turn. Ours is "
            "exact. The paper's route is bisected to full precision.",
            "A rival is left out where a call would take more than a minute. Peak memory is what numpy and Python "
            "allocate in one call.",
        ],
        seeds=[SEED],
    )


if __name__ == "__main__":
    main()
