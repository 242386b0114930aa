"""Measure the gradient's variance with second moments and baselines that are learnt along a training run.

Uniform trains, and predictors and baselines learn from the same batches. At the beginning and the end of the run the
variance under each is computed in closed form, from exact p and the parameter-gradient moments of some prompts.

    python -m benchmarks.moments
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from apportion import Belief
from apportion.allocators import VIP, Uniform
from apportion.baselines import Baseline, Optimal, Predicted
from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.report.results import SeedInterval
from apportion.lab.training.settings import Training
from apportion.lab.training.trainer import Trainer
from apportion.loop import collect
from apportion.predictors import DiscountedCounts, GaussianProcess, Predictor, SentenceTransformerEmbedder, UniformPrior
from apportion.predictors.score_moments import second_moment
from apportion.types import Batch
from benchmarks.common import table, write
from benchmarks.gradients import score_moments

SEEDS = (20, 21, 22)
LEARNING_RATES = {"medium": 5e-4, "hard": 1e-3}
POINTS = (0, 9_600)
PROMPTS, PROMPTS_PER_STEP, GROUP = 48, 16, 4
PER_PROMPT, LOW, HIGH = 8, 3, 24
WRONG_ROLLOUTS, PERMUTATIONS = 60, 20

Learners = Mapping[str, Predictor | Baseline]
LEARNERS: dict[str, Callable[[], Predictor | Baseline]] = {
    "counts": DiscountedCounts,
    "gp": lambda: GaussianProcess(SentenceTransformerEmbedder()),
    "predicted": lambda: Predicted(DiscountedCounts()),
    "optimal": Optimal,
}

BELIEFS = ("counts", "gp")
"""The ``LEARNERS`` that VIP plans by."""
VIP_RULE = VIP(rollouts_per_prompt=PER_PROMPT, low=LOW, high=HIGH, predictor=UniformPrior())

Found = dict[str, dict[str, float]]
"""The results of one point of one run, by table and row."""


@dataclass(frozen=True)
class Overheard(Uniform):
    """Uniform, with learners that observe its batches."""

    learners: Learners = field(default_factory=dict)

    def prepare(self, prompts):
        for learner in self.learners.values():
            learner.prepare(prompts)

    def observe(self, batch):
        for learner in self.learners.values():
            learner.update(batch)


def overheard():
    """Return an ``Overheard`` whose learners have seen nothing."""
    return Overheard(GROUP, {name: make() for name, make in LEARNERS.items()})


def follow(base, seed, allocator, look):
    """Train one run, and return ``look(trainer, problems)`` before and after it."""
    settings = Training(
        base,
        prompts_per_step=PROMPTS_PER_STEP,
        rollouts=POINTS[-1],
        learning_rate=LEARNING_RATES[base],
        evaluate_every=POINTS[-1],
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(settings, allocator, seed, Path(folder))
        problems = trainer.problems[:PROMPTS]
        before = look(trainer, problems)
        trainer.run()
        return before, look(trainer, problems)


def warm(policy, prompts, seed):
    """Return learners after one epoch of the untrained policy, the history for point 0."""
    allocator, sampler = overheard(), LedgerSampler(policy, seed + 2000)
    allocator.prepare(prompts)
    for first in range(0, len(prompts), PROMPTS_PER_STEP):
        allocator.observe(collect(allocator, prompts[first : first + PROMPTS_PER_STEP], sampler))
    return allocator.learners


def judge(seed, trainer, problems):
    """Return all results for the present policy."""
    policy = trainer.policy
    learners = trainer.allocator.learners if trainer.steps else warm(policy, trainer.prompts, seed)
    moments = score_moments(policy, problems, wrong_rollouts=WRONG_ROLLOUTS, seed=seed + 1000)
    prompts = [problem.prompt() for problem in problems]
    rng = np.random.default_rng(seed)
    return {"groups": groups(moments, prompts, learners, rng), "singles": singles(moments, prompts, learners)}


def groups(moments, prompts, learners, rng):
    """Return the summed RLOO variance under each allocation over that of uniform."""
    uniform = moments.variance(np.full(PROMPTS, PER_PROMPT)).sum()

    def ratio(belief):
        return float(moments.variance(VIP_RULE.plan(Batch.start(prompts, belief)).counts).sum() / uniform)

    def exact(success):
        return ratio(Belief.from_mean(success))

    shuffled = [exact(rng.permutation(moments.success)) for _ in range(PERMUTATIONS)]
    found = {"vip, exact p": exact(moments.success), "vip, exact p shuffled": float(np.mean(shuffled))}
    return found | {f"vip, {name}": ratio(learners[name].predict(prompts)) for name in BELIEFS}


def singles(moments, prompts, learners):
    """Return the summed variance of one rollout with each baseline over ``GROUP`` times that of RLOO's groups."""
    rloo = GROUP * moments.variance(np.full(PROMPTS, GROUP)).sum()
    baselines = {
        "b = 0": np.zeros(PROMPTS),
        "b = p, predicted from counts": learners["predicted"].predict(prompts),
        "b = b*, optimal from history": learners["optimal"].predict(prompts),
    }
    return {name: float(single_variance(moments, b).sum() / rloo) for name, b in baselines.items()}


def single_variance(moments, baseline):
    """Return the variance [P] of one rollout's gradient (r - b) h: E[(r - b)^2 |h|^2] - p^2 |E[h | right]|^2."""
    second = second_moment(moments.success, baseline, moments.right, moments.wrong)
    return second - moments.success**2 * moments.right_mean


def table_rows(runs, part):
    """Return the rows of table ``part``: base, rule, and a cell for each point."""
    rows = []
    for base, found in runs.items():
        for name in found[0][0][part]:
            cells = [str(SeedInterval.of([run[point][part][name] for run in found])) for point in range(len(POINTS))]
            rows.append([base, name, *cells])
    return rows


def main():
    """Train, judge, and write the table ``moments``."""
    report({base: [follow(base, seed, overheard(), partial(judge, seed)) for seed in SEEDS] for base in LEARNING_RATES})


def report(runs):
    """Write the tables of ``runs``: for each base a list by seed of lists by point."""
    columns = ["base", "rule", *(f"after {rollouts:,}" for rollouts in POINTS)]
    rates = ", ".join(f"{base} {rate:g}" for base, rate in LEARNING_RATES.items())
    write(
        "moments",
        "Gradient variance from learnt moments and baselines, along training",
        columns,
        table_rows(runs, "groups"),
        [
            f"Summed RLOO variance of {PROMPTS} training prompts at {PER_PROMPT} rollouts a prompt on average, over "
            f"that of uniform {PER_PROMPT}; below 1 is better. At least {LOW} and at most {HIGH} a prompt. Shuffled: "
            f"mean of {PERMUTATIONS} permutations. Means and 95% intervals (Student's t) over {len(SEEDS)} runs a "
            "base.",
            f"Uniform {GROUP} trains with RLOO on 512 problems, {PROMPTS_PER_STEP} a step (learning rate: {rates}). "
            "The truth is in closed form, from exact p and squared norms of the gradient in all parameters. The "
            "learners have those in the logits, a proxy.",
            "## One rollout a prompt, with a baseline from history",
            f"Summed variance of one rollout with advantage r - b, over {GROUP} times the variance of RLOO's mean of "
            f"{GROUP}: both at equal rollouts.",
            table(columns, table_rows(runs, "singles")),
        ],
        seeds=SEEDS,
    )


if __name__ == "__main__":
    main()
