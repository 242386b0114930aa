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
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from apportion.allocators import printed_counts
from apportion.allocators.hora import maximise_hits
from apportion.allocators.spending import printed
from apportion.allocators.vip import GroupEstimator, minimise_variance
from apportion.types import Belief, Counts, Floats
from benchmarks.common import options, peak_mib, write

SIZES = (64, 512, 4_096, 32_768, 262_144, 1_000_000)
PER_PROMPT, LOW, HIGH, PRE_ROLLOUTS, SEED = 8, 3, 64, 4, 0
LONGEST = 60.0
ESTIMATORS: tuple[GroupEstimator, ...] = ("rloo", "dr_grpo")
COLUMNS = [
    "prompts P",
    "solver",
    "milliseconds: median (least to most)",
    "peak MiB",
]


@dataclass(frozen=True)
class Problem:
    """Success probabilities [P], the budget, and Beta posteriors after ``PRE_ROLLOUTS`` of each prompt."""

    success: Floats
    budget: int
    posterior: Belief


@dataclass
class Timed:
    """A solver, the least power of P by which its time grows, and its last size and time."""

    solve: Callable[[Problem], Counts]
    growth: int = 1
    last: tuple[int, float] | None = None

    def too_long(self, prompts: int) -> bool:
        """Return whether a call is predicted to take more than a minute, from the last size that ran."""
        return self.last is not None and self.last[1] * (prompts / self.last[0]) ** self.growth > LONGEST


def draw(prompts: int, generator: np.random.Generator) -> Problem:
    """Draw a U-shaped population, as of a data set that a policy half masters."""
    success = generator.beta(0.7, 0.9, prompts)
    posterior = Belief.uniform(prompts).condition(
        generator.binomial(PRE_ROLLOUTS, success), np.full(prompts, PRE_ROLLOUTS)
    )
    return Problem(success, PER_PROMPT * prompts, posterior)


def ours(estimator: GroupEstimator) -> Callable[[Problem], Counts]:
    return lambda problem: minimise_variance(problem.success, problem.budget, estimator, LOW, HIGH)


def paper(estimator: GroupEstimator) -> Callable[[Problem], Counts]:
    return lambda problem: printed_counts(problem.success, problem.budget, LOW, HIGH, estimator)


def paper_with_heap(estimator: GroupEstimator) -> Callable[[Problem], Counts]:
    """Return the paper's route with the incentives of Algorithm 2 in a heap."""

    def solve(problem: Problem) -> Counts:
        a = 4 * problem.success * (1 - problem.success)
        counts = printed.relaxed(a, problem.budget, LOW, HIGH, estimator)
        counts = np.clip(np.floor(counts + 1e-9).astype(int), LOW, HIGH)
        incentives = (-a * (shape(counts, estimator) - shape(counts + 1, estimator))).tolist()
        heap = [(incentive, q) for q, incentive in enumerate(incentives) if counts[q] < HIGH]
        heapq.heapify(heap)
        for _ in range(problem.budget - int(counts.sum())):
            _, q = heap[0]
            counts[q] += 1
            n = int(counts[q])
            if n < HIGH:
                heapq.heapreplace(heap, (-a[q] * (shape(n, estimator) - shape(n + 1, estimator)), q))
            else:
                heapq.heappop(heap)
        return counts

    return solve


def slsqp(estimator: GroupEstimator) -> Callable[[Problem], Counts]:
    """Return scipy's SLSQP on the relaxation, with exact derivatives, from the uniform allocation; then Algorithm 2."""

    def solve(problem: Problem) -> Counts:
        a = 4 * problem.success * (1 - problem.success)
        found = minimize(
            lambda n: float((a * shape(n, estimator)).sum()),
            np.full(len(a), float(PER_PROMPT)),
            jac=lambda n: a * slope(n, estimator),
            method="SLSQP",
            bounds=[(LOW, HIGH)] * len(a),
            constraints={"type": "eq", "fun": lambda n: n.sum() - problem.budget, "jac": np.ones_like},
            options={"maxiter": 200, "ftol": 1e-9},
        )
        return printed.rounded(found.x, a, problem.budget, LOW, HIGH, estimator)

    return solve


def shape(n, estimator: GroupEstimator):  # type: ignore[no-untyped-def]
    """Return f(n) of the paper for an array or a number."""
    return (n - 1) / n**2 if estimator == "dr_grpo" else 1 / (n - 1)


def slope(n: Floats, estimator: GroupEstimator) -> Floats:
    """Return the derivative of ``shape``."""
    return (2 - n) / n**3 if estimator == "dr_grpo" else -1 / (n - 1) ** 2


def hits(problem: Problem) -> Counts:
    granted = np.full(len(problem.success), PRE_ROLLOUTS)
    return maximise_hits(problem.posterior, problem.budget, granted, HIGH)


def solvers() -> dict[str, Timed]:
    """Return all solvers, ours first: it warms up no cache of others, and they are compared with it."""
    found = {}
    for estimator in ESTIMATORS:
        found[f"ours, {estimator}"] = Timed(ours(estimator))
        found[f"paper, {estimator}"] = Timed(paper(estimator), growth=2)
        found[f"paper with a heap, {estimator}"] = Timed(paper_with_heap(estimator))
        found[f"SLSQP, {estimator}"] = Timed(slsqp(estimator), growth=3)
    return found | {"ours, hit utility": Timed(hits)}


def measure(prompts: int, repeats: int, timed: dict[str, Timed]) -> list[list[str]]:
    """Return the table rows of one size."""
    problem = draw(prompts, np.random.default_rng(SEED))
    running = {name: solver for name, solver in timed.items() if not solver.too_long(prompts)}
    seconds: dict[str, list[float]] = {name: [] for name in running}
    for repeat in range(repeats):
        for name, solver in running.items():
            if repeat >= 3 and seconds[name][-1] > 2:  # three calls of a slow one are enough
                continue
            start = time.process_time()
            solver.solve(problem)
            seconds[name].append(time.process_time() - start)
    rows = []
    for name, solver in running.items():
        median = statistics.median(seconds[name])
        solver.last = (prompts, median)
        memory = f"{peak_mib(lambda solve=solver.solve: solve(problem))[0]:,.1f}" if median < 5 else "-"
        rows.append([f"{prompts:,}", name, shown(seconds[name]), memory])
        print(rows[-1], flush=True)
    return rows


def shown(seconds: Sequence[float]) -> str:
    """Return milliseconds: their median, least and most."""
    return "{:,.2f} ({:,.2f} to {:,.2f})".format(
        *(1e3 * each for each in (statistics.median(seconds), min(seconds), max(seconds)))
    )


def main() -> None:
    arguments = options(__doc__, sizes=SIZES, repeats=15)
    timed, rows = solvers(), []
    for prompts in arguments.sizes:
        rows += measure(prompts, arguments.repeats if prompts < 200_000 else 5, timed)
    write(
        "solver",
        "Allocation: the exact solver and its rivals",
        COLUMNS,
        rows,
        [
            f"Success probabilities from Beta(0.7, 0.9), {PER_PROMPT} rollouts a prompt, between {LOW} and {HIGH}; the "
            f"hit utility after {PRE_ROLLOUTS} pre-rollouts. One thread, processor time, all solvers in turn. Ours is "
            "exact. The paper's route is bisected to full precision.",
            f"A rival is left out where a call would take more than {LONGEST:.0f} s. Peak memory is what numpy and "
            "Python allocate in one call; it is not measured for calls of more than 5 s.",
        ],
        seeds=[SEED],
    )


if __name__ == "__main__":
    main()
