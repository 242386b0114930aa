"""Time the exact integer solver, the paper's route and SLSQP on the same probabilities, in one process on one thread.

The paper's route (arXiv 2602.01601) is the tests' reference: the relaxation by bisection (Theorems 5.1 and 5.2), then
Algorithm 2, which looks at every prompt for each rollout that it deals. The same rounding with a heap runs too, so that
the comparison is not with a slow loop alone. SLSQP solves the same relaxation and is rounded by Algorithm 2.

Budgets in tokens follow, with another rollout length for each prompt: the knapsack solver, and its own first step,
which buys what gains most per token while it fits.

    python -m benchmarks.solver
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import argparse
import heapq
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import minimize

from apportion.allocators import printed_counts
from apportion.allocators.hora import maximise_hits
from apportion.allocators.spending import printed
from apportion.allocators.spending.knapsack import spend_costs
from apportion.allocators.vip import GroupEstimator, gradient_variance, minimise_variance, noise_drops
from apportion.types import Belief, Counts, Floats
from benchmarks.common import peak_mib, write

SIZES = (64, 512, 4_096, 32_768, 262_144, 1_000_000)
PER_PROMPT, LOW, HIGH, PRE_ROLLOUTS, SEED = 8, 3, 64, 4, 0
LONGEST = 60.0
ESTIMATORS: tuple[GroupEstimator, ...] = ("rloo", "dr_grpo")
COLUMNS = [
    "prompts P",
    "solver",
    "milliseconds: median (least to most)",
    "times ours",
    "peak MiB",
    "objective above ours",
]

DrawCosts = Callable[[np.random.Generator, int], Counts]
TOKEN_SIZES, TOKEN_INSTANCES = (8, 64, 512, 4_096, 100_000), 25
COSTS: dict[str, DrawCosts] = {
    "50 to 4,000 tokens": lambda generator, prompts: generator.integers(50, 4_001, prompts),
    "lognormal around 4,000, up to 32,768": lambda generator, prompts: np.ceil(
        np.minimum(generator.lognormal(np.log(4_000), 1.0, prompts), 32_768)
    ).astype(np.int64),
}
TOKEN_COLUMNS = [
    "tokens of a rollout",
    "prompts P",
    "milliseconds: median (least to most)",
    "proven optimal",
    "largest gap left",
    "greedy loses: median (most)",
]


@dataclass(frozen=True)
class Problem:
    """Success probabilities [P], the budget, and Beta posteriors after ``PRE_ROLLOUTS`` of each prompt."""

    success: Floats
    budget: int
    posterior: Belief


@dataclass
class Timed:
    """A solver, the least power of P by which its time grows, its last size and time, and the sizes it skipped."""

    solve: Callable[[Problem], Counts]
    estimator: GroupEstimator | None
    growth: int = 1
    last: tuple[int, float] | None = None
    skipped: list[int] = field(default_factory=list)

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
        found[f"ours, {estimator}"] = Timed(ours(estimator), estimator)
        found[f"paper, {estimator}"] = Timed(paper(estimator), estimator, growth=2)
        found[f"paper with a heap, {estimator}"] = Timed(paper_with_heap(estimator), estimator)
        found[f"SLSQP, {estimator}"] = Timed(slsqp(estimator), estimator, growth=3)
    return found | {"ours, hit utility": Timed(hits, None)}


def measure(prompts: int, repeats: int, timed: dict[str, Timed]) -> tuple[list[list[str]], dict[str, dict[str, float]]]:
    """Return the table rows of one size, and their numbers by solver."""
    problem = draw(prompts, np.random.default_rng(SEED))
    running = {name: solver for name, solver in timed.items() if not solver.too_long(prompts)}
    for name in timed.keys() - running.keys():
        timed[name].skipped.append(prompts)
    seconds: dict[str, list[float]] = {name: [] for name in running}
    counts: dict[str, Counts] = {}
    for repeat in range(repeats):
        for name, solver in running.items():
            if repeat >= 3 and seconds[name][-1] > 2:  # three calls of a slow one are enough
                continue
            start = time.process_time()
            counts[name] = solver.solve(problem)
            seconds[name].append(time.process_time() - start)
    rows, numbers = [], {}
    for name, solver in running.items():
        median = statistics.median(seconds[name])
        solver.last = (prompts, median)
        memory = peak_mib(lambda solve=solver.solve: solve(problem))[0] if median < 5 else float("nan")
        rival = f"ours, {solver.estimator or 'hit utility'}"
        gap = 0.0
        if solver.estimator is not None:
            best, own = (
                gradient_variance(problem.success, counts[key], solver.estimator).sum() for key in (rival, name)
            )
            gap = float(own / best - 1)
        ratio = median / statistics.median(seconds[rival])
        spread = f"{1e3 * median:,.2f} ({1e3 * min(seconds[name]):,.2f} to {1e3 * max(seconds[name]):,.2f})"
        shown = "-" if np.isnan(memory) else f"{memory:,.1f}"
        is_ours = name == rival
        rows.append(
            [f"{prompts:,}", name, spread, "1" if is_ours else f"{ratio:,.0f}", shown, "-" if is_ours else f"{gap:.1e}"]
        )
        numbers[name] = {"median": median, "least": min(seconds[name]), "most": max(seconds[name])} | {
            "peak_mib": None if np.isnan(memory) else memory,
            "gap": gap,
            "calls": len(seconds[name]),
        }
        print(rows[-1], flush=True)
    return rows, numbers


def token_rows(sizes: Sequence[int], instances: int) -> tuple[list[list[str]], dict[str, dict[str, float]]]:
    """Return the table rows of budgets in tokens, and their numbers by kind of costs and size."""
    rows, numbers = [], {}
    for kind, draw_costs in COSTS.items():
        for prompts in sizes:
            found = [token_instance(prompts, draw_costs, seed) for seed in range(instances if prompts < 10_000 else 3)]
            seconds, gaps, lost = (np.array(column) for column in zip(*found, strict=True))
            numbers[f"{kind}, {prompts}"] = {
                "median": float(np.median(seconds)),
                "least": float(seconds.min()),
                "most": float(seconds.max()),
                "proven": int((gaps == 0).sum()),
                "instances": len(found),
                "gap": float(gaps.max()),
                "greedy_loses": float(np.median(lost)),
                "greedy_loses_most": float(lost.max()),
            }
            spread = f"{1e3 * np.median(seconds):,.2f} ({1e3 * seconds.min():,.2f} to {1e3 * seconds.max():,.2f})"
            proven = f"{(gaps == 0).sum()} of {len(found)}"
            greedy = f"{np.median(lost):.1e} ({lost.max():.1e})"
            rows.append([kind, f"{prompts:,}", spread, proven, f"{gaps.max():.1e}", greedy])
            print(rows[-1], flush=True)
    return rows, numbers


def token_instance(prompts: int, draw_costs: DrawCosts, seed: int) -> tuple[float, float, float]:
    """Return the seconds of one call, the gap left by its answer, and the greedy loss, as shares of the total gain."""
    generator = np.random.default_rng(seed)
    success, costs = generator.beta(0.7, 0.9, prompts), draw_costs(generator, prompts)
    low = np.full(prompts, LOW)
    gains = noise_drops(success * (1 - success), "rloo", LOW, HIGH - LOW)
    budget = max(int(PER_PROMPT * costs.mean() * prompts), int(costs @ low))
    start = time.process_time()
    spent = spend_costs(gains, budget, low, costs)
    seconds = time.process_time() - start
    greedily = spend_costs(gains, budget, low, costs, most_work=0)
    best, greedy = (bought_gain(gains, answer.counts - low) for answer in (spent, greedily))
    return seconds, spent.gap / best, (best - greedy) / best


def bought_gain(gains: Floats, bought: Counts) -> float:
    """Return the total gain of the first ``bought`` [P] rollouts of each prompt."""
    return float(np.where(np.arange(gains.shape[1]) < bought[:, None], gains, 0.0).sum())


def targets(numbers: dict[int, dict[str, dict[str, float]]]) -> list[str]:
    """Return one line for each target of the solver that says whether it is met."""
    lines = []
    for prompts, seconds, memory in ((512, 0.002, None), (1_000_000, 5.0, 2048.0)):
        for name, found in numbers.get(prompts, {}).items():
            if not name.startswith("ours"):
                continue
            met = found["median"] <= seconds and (memory is None or found["peak_mib"] <= memory)
            promise = f"{1e3 * seconds:,.0f} ms" + (f" and {memory:,.0f} MiB" if memory else "")
            lines.append(
                f"- {name}, P = {prompts:,}, at most {promise}: {'met' if met else 'MISSED'}, "
                f"{1e3 * found['median']:,.2f} ms and {found['peak_mib']:,.0f} MiB"
            )
    return lines


def tokens() -> None:
    """Measure budgets in tokens and write their table."""
    rows, numbers = token_rows(TOKEN_SIZES, TOKEN_INSTANCES)
    note = f"RLOO, a budget of {PER_PROMPT} times the mean length a prompt; gap and loss are shares of the total gain."
    write("solver_tokens", "Budgets in tokens", TOKEN_COLUMNS, rows, [note], seeds=[SEED], cells={"measured": numbers})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of prompts P")
    parser.add_argument("--repeats", type=int, default=15, help="calls timed of each solver at each size")
    arguments = parser.parse_args()
    timed, rows, numbers = solvers(), [], {}
    tokens()
    for prompts in arguments.sizes:
        new, numbers[prompts] = measure(prompts, arguments.repeats if prompts < 200_000 else 5, timed)
        rows += new
    skipped = [
        f"{name} at P = {', '.join(f'{p:,}' for p in one.skipped)}" for name, one in timed.items() if one.skipped
    ]
    notes = [
        f"Success probabilities from Beta(0.7, 0.9), {PER_PROMPT} rollouts a prompt, between {LOW} and {HIGH}; the hit "
        f"utility after {PRE_ROLLOUTS} pre-rollouts. One thread, processor time, all solvers in turn. "
        "Ours is exact. A gap above 0 is the loss of a rival's rounding.",
        f"Not run, because a call would take more than {LONGEST:.0f} s by the time at the size before (assumed to grow "
        "at least linearly; the paper's loop quadratically, SLSQP cubically): " + ("; ".join(skipped) or "none") + ".",
        "The paper's route is bisected to full precision in 200 halvings, under Dr. GRPO with 80 more inside each. "
        "Fewer would be enough for its rounding, but their number would be another constant to choose.",
        "Peak memory is what numpy and Python allocate in one call. It is not measured for calls of more than 5 s.",
        "Targets:\n\n" + "\n".join(targets(numbers)),
    ]
    write(
        "solver",
        "Allocation: the exact solver and its rivals",
        COLUMNS,
        rows,
        notes,
        seeds=[SEED],
        cells={"measured": numbers},
    )


if __name__ == "__main__":
    main()
