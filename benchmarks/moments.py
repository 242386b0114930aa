"""Measure the gradient's variance with second moments and baselines that are learnt along a training run.

Uniform trains, and predictors and baselines learn from the same batches. At three points of the run the variance under
each is computed in closed form, from the exact p and the parameter-gradient moments of some training prompts.

    python -m benchmarks.moments
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy import stats
from transformers import Qwen2ForCausalLM

from apportion import Belief, Prompt
from apportion.allocators import VIP, Allocator, Neyman, Uniform
from apportion.baselines import Baseline, Optimal, Predicted
from apportion.lab.measure.moments import Moments, least_variance, score_moments
from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.report.results import SeedInterval
from apportion.lab.training.settings import Training
from apportion.lab.training.trainer import Trainer
from apportion.lab.world.task import Problem
from apportion.loop import collect
from apportion.predictors import (
    DiscountedCounts,
    GaussianProcess,
    MovingAverage,
    Predictor,
    ScoreMoments,
    SentenceTransformerEmbedder,
    UniformPrior,
)
from apportion.predictors.score_moments import optimal_baseline, second_moment
from apportion.types import Batch, Counts, Floats
from benchmarks.common import table, write

SEEDS = (20, 21, 22)
LEARNING_RATES = {"medium": 5e-4, "hard": 1e-3}
POINTS = (0, 4_032, 9_600)
PROMPTS, PROMPTS_PER_STEP, GROUP = 48, 16, 4
PER_PROMPT, LOW, HIGH, SINGLES = 8, 3, 24, 2
WRONG_ROLLOUTS, PERMUTATIONS = 60, 20

Learners = Mapping[str, Predictor | Baseline]
LEARNERS: dict[str, Callable[[], Predictor | Baseline]] = {
    "counts": DiscountedCounts,
    "moving average": MovingAverage,
    "gp": lambda: GaussianProcess(SentenceTransformerEmbedder()),
    "gp, noise 1": lambda: GaussianProcess(SentenceTransformerEmbedder(), noise=1.0),
    "score moments": ScoreMoments,
    "score moments, b*": lambda: ScoreMoments(baseline="optimal"),
    "predicted": lambda: Predicted(DiscountedCounts()),
    "optimal": Optimal,
}

VIP_RULE = VIP(rollouts_per_prompt=PER_PROMPT, low=LOW, high=HIGH, predictor=UniformPrior())
NEYMAN = {low: Neyman(rollouts_per_prompt=PER_PROMPT, low=low, high=HIGH) for low in (2, 3)}
SINGLES_RULE = Neyman(estimator="reinforce", rollouts_per_prompt=SINGLES, low=1, high=HIGH)

Found = dict[str, dict[str, float]]
"""The results of one point of one run, by table and row."""


@dataclass(frozen=True)
class Overheard(Uniform):
    """Uniform, with learners that observe its batches."""

    learners: Learners = field(default_factory=dict)

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        for learner in self.learners.values():
            learner.prepare(prompts)

    def observe(self, batch: Batch) -> None:
        for learner in self.learners.values():
            learner.update(batch)


def overheard() -> Overheard:
    """Return an ``Overheard`` whose learners have seen nothing."""
    return Overheard(GROUP, {name: make() for name, make in LEARNERS.items()})


def follow(base: str, seed: int) -> list[Found]:
    """Train one run, and judge the learners at each of ``POINTS``."""
    settings = Training(
        base,
        prompts_per_step=PROMPTS_PER_STEP,
        rollouts=POINTS[-1],
        learning_rate=LEARNING_RATES[base],
        evaluate_every=POINTS[-1],
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(settings, overheard(), seed, Path(folder))
        problems = trainer.problems[:PROMPTS]
        found = [judge(trainer.policy, problems, warm(trainer.policy, trainer.prompts, seed), seed)]
        for stop in POINTS[1:]:
            trainer.run(lambda record, stop=stop: record["rollouts"] < stop)
            found.append(judge(trainer.policy, problems, trainer.allocator.learners, seed))
    return found


def warm(policy: Qwen2ForCausalLM, prompts: Sequence[Prompt], seed: int) -> Learners:
    """Return learners after one epoch of the untrained policy, the history for point 0."""
    allocator, sampler = overheard(), LedgerSampler(policy, seed + 2000)
    allocator.prepare(prompts)
    for first in range(0, len(prompts), PROMPTS_PER_STEP):
        allocator.observe(collect(allocator, prompts[first : first + PROMPTS_PER_STEP], sampler))
    return allocator.learners


def judge(policy: Qwen2ForCausalLM, problems: Sequence[Problem], learners: Learners, seed: int) -> Found:
    """Return all results for the present policy."""
    moments = score_moments(policy, problems, wrong_rollouts=WRONG_ROLLOUTS, seed=seed + 1000)
    prompts = [problem.prompt() for problem in problems]
    rng = np.random.default_rng(seed)
    return {
        "groups": groups(moments, prompts, learners, rng),
        "singles": singles(moments, prompts, learners),
        "spent": spent(moments, prompts, learners, rng),
        "ranks": ranks(moments, prompts, learners),
    }


def groups(moments: Moments, prompts: list[Prompt], learners: Learners, rng: np.random.Generator) -> dict[str, float]:
    """Return the summed RLOO variance under each allocation over that of uniform."""
    uniform = moments.variance(np.full(PROMPTS, PER_PROMPT)).sum()
    beliefs = {name: learners[name].predict(prompts) for name in predictors()}
    measured = beliefs["score moments"]

    def ratio(counts: Counts) -> float:
        return float(moments.variance(counts).sum() / uniform)

    def vip(belief: Belief) -> float:
        return ratio(planned(VIP_RULE, prompts, belief))

    def exact(success: Floats) -> Belief:
        return Belief.from_mean(success)

    shuffled = [vip(exact(rng.permutation(moments.success))) for _ in range(PERMUTATIONS)]
    found = {"vip, exact p": vip(exact(moments.success)), "vip, exact p shuffled": float(np.mean(shuffled))}
    found |= {f"vip, {name}": vip(belief) for name, belief in beliefs.items() if name != "score moments"}
    found["vip, p of score moments"] = vip(Belief(measured.alpha, measured.beta))
    found |= {f"neyman, score moments, low {low}": ratio(planned(NEYMAN[low], prompts, measured)) for low in (3, 2)}
    found["least, known moments, low 2"] = ratio(least_variance(moments, PER_PROMPT * PROMPTS, 2, HIGH))
    return found


def singles(moments: Moments, prompts: list[Prompt], learners: Learners) -> dict[str, float]:
    """Return the summed variance of one rollout with each baseline over ``GROUP`` times that of RLOO's groups."""
    rloo = GROUP * moments.variance(np.full(PROMPTS, GROUP)).sum()
    baselines = {
        "b = 0": np.zeros(PROMPTS),
        "b = p, exact": moments.success,
        "b = p, predicted from counts": learners["predicted"].predict(prompts),
        "b = b*, optimal from history": learners["optimal"].predict(prompts),
        "b = b*, exact": optimal_baseline(moments.success, moments.right, moments.wrong),
    }
    return {name: float(single_variance(moments, b).sum() / rloo) for name, b in baselines.items()}


def spent(moments: Moments, prompts: list[Prompt], learners: Learners, rng: np.random.Generator) -> dict[str, float]:
    """Return the summed variance with the baseline of ``Optimal`` under each allocation over that of uniform."""
    variance = single_variance(moments, learners["optimal"].predict(prompts))
    measured = learners["score moments, b*"].predict(prompts)
    counts = planned(SINGLES_RULE, prompts, measured)
    known = Belief(measured.alpha, measured.beta, np.maximum(variance, 0.0))

    def ratio(counts: Counts) -> float:
        return float((variance / counts).sum() / (variance / SINGLES).sum())

    return {
        "neyman, score moments": ratio(counts),
        "its counts shuffled": float(np.mean([ratio(rng.permutation(counts)) for _ in range(PERMUTATIONS)])),
        "least, known variance": ratio(planned(SINGLES_RULE, prompts, known)),
    }


def ranks(moments: Moments, prompts: list[Prompt], learners: Learners) -> dict[str, float]:
    """Return the rank correlation of each predictor's variance with the true E[(r - p)^2 |h|^2], and the mean p."""
    p = moments.success
    truth = second_moment(p, p, moments.right, moments.wrong)
    beliefs = {"exact p (1 - p)": p * (1 - p)}
    beliefs |= {name: learners[name].predict(prompts).variance for name in predictors()}
    found = {name: float(stats.spearmanr(variance, truth).statistic) for name, variance in beliefs.items()}
    return found | {"(mean exact p of the prompts)": float(p.mean())}


def predictors() -> list[str]:
    """Return the names of ``LEARNERS`` that predict success for RLOO."""
    return [name for name in LEARNERS if name not in ("score moments, b*", "predicted", "optimal")]


def planned(rule: Allocator, prompts: list[Prompt], belief: Belief) -> Counts:
    """Return the counts [P] of ``rule`` under ``belief``."""
    return rule.plan(Batch.start(prompts, belief)).counts


def single_variance(moments: Moments, baseline: Floats) -> Floats:
    """Return the variance [P] of one rollout's gradient (r - b) h: E[(r - b)^2 |h|^2] - p^2 |E[h | right]|^2."""
    mean = moments.right if moments.right_mean is None else moments.right_mean
    return second_moment(moments.success, baseline, moments.right, moments.wrong) - moments.success**2 * mean


DIFFERENCES = {
    "groups": {
        "difference: neyman low 3 - vip on its p": ("neyman, score moments, low 3", "vip, p of score moments"),
        "difference: vip, gp, noise 1 - vip, counts": ("vip, gp, noise 1", "vip, counts"),
    },
    "singles": {
        "difference: optimal - predicted": ("b = b*, optimal from history", "b = p, predicted from counts"),
    },
}


def table_rows(runs: dict[str, list[list[Found]]], part: str) -> list[list[str]]:
    """Return the rows of table ``part``: base, rule, and a cell for each point; paired differences last."""
    rows = []
    for base, found in runs.items():
        for name in found[0][0][part]:
            cells = [str(SeedInterval.of([run[point][part][name] for run in found])) for point in range(len(POINTS))]
            rows.append([base, name, *cells])
        for name, (one, other) in DIFFERENCES.get(part, {}).items():
            pairs = [[run[point][part][one] - run[point][part][other] for run in found] for point in range(len(POINTS))]
            rows.append([base, name, *(SeedInterval.of(values).signed for values in pairs)])
    return rows


def main() -> None:
    """Train, judge, and write the table ``moments``."""
    report({base: [follow(base, seed) for seed in SEEDS] for base in LEARNING_RATES})


def report(runs: dict[str, list[list[Found]]]) -> None:
    """Write the tables of ``runs``: for each base a list by seed of lists by point."""
    columns = ["base", "rule", *(f"after {rollouts:,}" for rollouts in POINTS)]
    rates = ", ".join(f"{base} {rate:g}" for base, rate in LEARNING_RATES.items())
    write(
        "moments",
        "Gradient variance from learnt moments and baselines, along training",
        columns,
        table_rows(runs, "groups"),
        [
            f"Above: summed RLOO variance of {PROMPTS} training prompts at {PER_PROMPT} rollouts a prompt on average, "
            f"over that of uniform {PER_PROMPT}; below 1 is better. VIP gives at least {LOW} and at most {HIGH}; "
            "Neyman and the least possible as named. Shuffled: mean of "
            f"{PERMUTATIONS} permutations. All numbers are means and 95% intervals (Student's t) over {len(SEEDS)} "
            "runs a base; differences are paired by run.",
            f"Uniform with {GROUP} rollouts a prompt trains with RLOO on 512 problems, {PROMPTS_PER_STEP} a step "
            f"(learning rate: {rates}); all learners see the same batches, each prompt about once in 32 steps and "
            "4.7 times in all. Point 0 has its own learners, after one epoch of 4 rollouts a prompt from the untrained "
            "policy, so nothing drifts there. The later points do not see this epoch.",
            "The truth is in closed form: exact p, and squared norms of the gradient in all parameters, those of "
            f"wrong completions averaged over about {WRONG_ROLLOUTS} a prompt. Their tails are heavy: a rare one can "
            "make up much of a prompt's moment. The learners have the squared norms in the logits, a proxy. 'least' is "
            "slightly flattered, because it is chosen and judged by the same moments.",
            "Defaults: counts, score moments and both baselines discount a prompt's own sums by .9 each time it is "
            "seen, what they pool over prompts by .98 a step; the moving average has a window of 1,024 prompt visits; "
            "the Gaussian process embeds the problem's text with MiniLM and has no discount. 'p of score moments' "
            "plans VIP from its counts alone, the control for its norms.",
            "## One rollout a prompt, with a baseline from history",
            f"Summed variance of one rollout with advantage r - b, over {GROUP} times the variance of RLOO's mean of "
            f"{GROUP}: both are the variance at equal rollouts, n times that of a mean of n. Exact p is RLOO's limit "
            "for large groups; a p that lags behind a rising one lies nearer b*. The variance is on fixed prompts. "
            "It does not count that single rollouts reach more prompts.",
            table(columns, table_rows(runs, "singles")),
            f"## Spending {SINGLES} rollouts a prompt on top of the optimal baseline",
            f"Neyman for reinforce, 1 to {HIGH} a prompt, over uniform {SINGLES}, both with the b that Optimal learnt. "
            "Shuffled is its control; 'known' has the true variance.",
            table(columns, table_rows(runs, "spent")),
            "## Predicted against true variance",
            "Spearman correlation over prompts of the predicted variance of one rollout with E[(r - p)^2 |h|^2].",
            table(columns, table_rows(runs, "ranks")),
        ],
        seeds=SEEDS,
        cells={"points": list(POINTS), "runs": runs},
    )


if __name__ == "__main__":
    main()
