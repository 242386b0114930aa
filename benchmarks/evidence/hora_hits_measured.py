"""Expected hits of HORA and its rivals along a training run, with exact success probabilities, and its calibration.

The policies are those of a run with uniform groups of 8. Nothing that is compared here trains them. Predictors watch
the same run, so that each has learned from the same rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
from scipy.stats import binom

from apportion.allocators import HORA, Uniform
from apportion.allocators.hora import hit_utility
from apportion.lab.policy.exact import exact_success
from apportion.lab.training.pool import Pool
from apportion.lab.training.trainer import Trainer
from apportion.lab.world.task import held_out_problems, training_problems
from apportion.predictors import DiscountedCounts, GaussianProcess, Predictor
from apportion.types import Belief, Floats, Prompt, Rollout
from benchmarks.evidence.hora_measured import problem_features
from benchmarks.evidence.hora_rules import Hardest, RandomPrompts
from benchmarks.evidence.learning import HARD, learn_seeds, passes, trainer_of

SEEDS = tuple(range(5))
EPOCH, EPOCHS = 32, 2
"""Steps of 16 prompts that visit all 512, and how many epochs a run has."""
BATCH, EACH, PRE, DRAWS = 64, 8, 4, 40
LEARNED: Mapping[str, Callable[[], Predictor]] = {
    "counts": DiscountedCounts,
    "gp": partial(GaussianProcess, problem_features),
}
"""Predictors that give HORA its prior. Embeddings are counts of operations, and need no download."""
BUCKETS = ((0, 0), (1, 3), (4, 7), (8, 8))
"""Right pre-rollouts of 8, as in the paper's Figure 3."""
METRICS = ("overall", "extra", "mixed")
"""Prompts in 100 with a right rollout, with a right one among the extra rollouts, and with a right and a wrong one."""


@dataclass(frozen=True)
class Watched(Uniform):
    """Uniform groups, from which ``predictors`` learn that decide nothing."""

    predictors: Mapping[str, Predictor] = field(default_factory=dict)

    def prepare(self, prompts):
        for predictor in self.predictors.values():
            predictor.prepare(prompts)

    def observe(self, batch):
        for predictor in self.predictors.values():
            predictor.update(batch)


@dataclass
class Given(Predictor):
    """The beliefs that it is given, in the order of the prompts."""

    belief: Belief

    name: ClassVar[str] = "given"

    def predict(self, prompts):
        return self.belief

    def update(self, batch):
        raise NotImplementedError("these beliefs do not learn")


def states(base, seed):
    """Yield the exact success [512] and the predictors' beliefs at the start and after each epoch of a run."""
    training = {"base": base, "prompts_per_step": 16, "learning_rate": 1e-3, "held_out": 50, "steps": EPOCH * EPOCHS}
    predictors = {name: make() for name, make in LEARNED.items()}
    with trainer_of(Watched(EACH, predictors), {**training, "evaluate_every": EPOCH}, seed) as trainer:
        for epoch in range(EPOCHS + 1):
            if epoch:
                trainer.run(lambda record: record["step"] % EPOCH != 0)
            beliefs = {name: predictor.predict(trainer.prompts) for name, predictor in predictors.items()}
            yield exact_success(trainer.policy, trainer.problems), beliefs


def drawn(success, allocator, draws, seed):
    """Return a rule's first counts [P], their right rollouts [draws, P] and the second counts [draws, P]."""
    rng = np.random.default_rng(seed)
    start = allocator.start([Prompt(str(q)) for q in range(len(success))])
    first = allocator.plan(start)
    right, wrong = Rollout(True), Rollout(False)
    outcomes = np.zeros((draws, 2, len(success)), np.int64)
    for correct, counts in outcomes:
        correct[:] = rng.binomial(first.counts, success)
        groups = [[right] * int(c) + [wrong] * int(n - c) for c, n in zip(correct, first.counts, strict=True)]
        counts[:] = allocator.plan(start.add(first, groups)).counts
    return first.counts, outcomes[:, 0], outcomes[:, 1]


def gain(success, allocator, each, draws, seed):
    """Return a rule's metrics [3] less those of an even split of ``each`` rollouts a prompt, on the same first round.

    The expectation over the second round is exact. Under an even split the first round decides nothing, so that its
    metrics are those of uniform groups, but for the noise of the draws, which the difference removes.
    """
    first, correct, extra = drawn(success, allocator, draws, seed)
    return metrics(success, first, correct, extra) - metrics(success, first, correct, each - first)


def metrics(success, first, correct, extra):
    """Return ``METRICS`` [3], means over draws and prompts of exact expectations, given the first round [draws, P]."""
    hit, miss = 1 - (1 - success) ** extra, 1 - success**extra
    overall = np.where(correct > 0, 1.0, hit)
    mixed = np.where(correct == 0, hit, np.where(correct == first, miss, 1.0))
    return np.array([overall.mean(), hit.mean(), mixed.mean()])


def rules(beliefs):
    """Return the rules of a batch by name. All spend 8 rollouts a prompt."""
    budget = {"rollouts_per_prompt": EACH}
    return {
        "pre_4": partial(HORA, pre_rollouts=PRE, **budget),
        "random": partial(RandomPrompts, pre_rollouts=PRE, **budget),
        "hardest": partial(Hardest, pre_rollouts=PRE, **budget),
        **{
            name: partial(HORA, pre_rollouts=PRE, predictor=Given(belief), **budget) for name, belief in beliefs.items()
        },
    }


def hits(base):
    """Return by epoch: the gain of each rule over uniform in points by metric and seed; allocation; calibration."""
    found: list[dict[str, Any]] = [{"gains": {}, "figure_3": [], "calibration": []} for _ in range(EPOCHS + 1)]
    for seed in SEEDS:
        for state, (success, beliefs) in zip(found, states(base, seed), strict=True):
            for name, gained in _gains(success, beliefs, seed).items():
                own = state["gains"].setdefault(name, {metric: [] for metric in METRICS})
                for metric, value in zip(METRICS, gained, strict=True):
                    own[metric].append(round(100 * float(value), 2))
            state["figure_3"].append(_allocation(success, seed))
            state["calibration"].append(_calibration(success))
    for state in found:
        state["figure_3"] = _mean(state["figure_3"])
        state["calibration"] = {"uniform": _mean(state["calibration"])}
    return {"epochs": found}


def _gains(success, beliefs, seed):
    """Return what each rule gains over uniform [3], on average over batches of 64 prompts."""
    gains: dict[str, list[Floats]] = {}
    for first in range(0, len(success), BATCH):
        part = slice(first, first + BATCH)
        own = {name: Belief(each.alpha[part], each.beta[part]) for name, each in beliefs.items()}
        for name, rule in rules(own).items():
            gains.setdefault(name, []).append(gain(success[part], rule(), EACH, DRAWS, seed + first))
    return {name: np.mean(each, axis=0) for name, each in gains.items()}


def _allocation(success, seed):
    """Return HORA's shares of prompts and of extra rollouts by ``BUCKETS``, with 8 pre-rollouts of 16."""
    counted = np.zeros((2, len(BUCKETS)))
    for first in range(0, len(success), BATCH):
        p = success[first : first + BATCH]
        _, right, extra = drawn(p, HORA(pre_rollouts=8, rollouts_per_prompt=16), DRAWS // 4, seed + first)
        for bucket, (low, high) in enumerate(BUCKETS):
            within = (low <= right) & (right <= high)
            counted[:, bucket] += within.sum(), extra[within].sum()
    prompts, rollouts = counted / counted.sum(1, keepdims=True)
    return {"prompts": prompts.tolist(), "rollouts": rollouts.tolist()}


def _calibration(success):
    """Return, by right pre-rollouts 0 to 4: the chance of a hit in 4, predicted by the uniform prior, and the true."""
    extra = np.full(len(success), EACH - PRE)
    true = 1 - (1 - success) ** extra
    found: dict[str, list[float]] = {"predicted": [], "true": []}
    for right in range(PRE + 1):
        weight = binom.pmf(right, PRE, success)
        posterior = Belief.uniform(len(success)).condition(np.full(len(success), right), np.full(len(success), PRE))
        found["predicted"].append(float(np.average(hit_utility(posterior, extra), weights=weight)))
        found["true"].append(float(np.average(true, weights=weight)))
    return found


def _mean(tables):
    """Return the means of tables of lists."""
    return {key: np.mean([each[key] for each in tables], axis=0).round(3).tolist() for key in tables[0]}


LONG = {"rollouts_per_prompt": 16, "pre_rollouts": 8}
LONG_RULES = {"uniform": partial(Uniform, 16), "pre_8": partial(HORA, **LONG)}


def long(rule):
    """Return what a rule finds and learns on the longest problems in half an epoch, with 16 rollouts a prompt.

    A run of uniform groups with seed 100, which is not measured, had solved 31% by then.
    """
    training = {**HARD, "estimator": "grpo", "rollouts": 4096}
    return learn_seeds(
        LONG_RULES[rule], training, measure=_found, kind=lambda *given: Trainer(*given, long_pool(given[2]))
    )


def long_pool(seed):
    """Return 512 problems of five operations, and such held-out ones, for a run with ``seed``.

    The hard base solves 8% of the held-out ones, 34% in 16 rollouts and 81% in 1,024.
    """
    drawn = (training_problems(4096, seed), held_out_problems())
    problems, held_out = (tuple(each for each in some if len(each.operations) == 5) for some in drawn)
    return Pool(problems[:512], held_out, {})


def _found(trainer, _):
    """Return exact pass@k on held-out problems, after and before, and the ``hits`` of the rule before training.

    Hits are prompts in 100 with a right rollout less uniform's, in a batch of all 512.
    """
    after, before = (passes(exact_success(policy, trainer.pool.held_out)) for policy in (trainer.policy, trainer.start))
    gained = gain(exact_success(trainer.start, trainer.problems), trainer.allocator, 2 * EACH, DRAWS, trainer.seed)
    return {"pass_at": after, "base": before["1024"], "hits": 100 * gained[0]}
