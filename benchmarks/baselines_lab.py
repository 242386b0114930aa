"""Score norms of completions in the lab, along training, which ``benchmarks.baselines`` compares baselines by.

Uniform trains with RLOO as in ``benchmarks.moments``. Before and after each run the policy answers some training
problems, and each completion's squared norm in all parameters is measured beside quantities that cost nothing.
"""

from functools import partial

import numpy as np

from apportion.allocators import Uniform
from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.world.task import encode
from benchmarks.baselines_measured import MEASURES, SAMPLES
from benchmarks.gradients import completion_gradients
from benchmarks.moments import GROUP, LEARNING_RATES, POINTS, PROMPTS, follow

SEEDS = tuple(range(20, 28))


def measure_lab():
    """Return what ``data/lab_scores.npz`` holds: [bases, points, seeds, prompts, samples] of every measure."""
    shape = len(LEARNING_RATES), len(POINTS), len(SEEDS), PROMPTS, SAMPLES
    found = {name: np.empty(shape, np.float32) for name in (*MEASURES, "right")}
    for b, base in enumerate(LEARNING_RATES):
        for s, seed in enumerate(SEEDS):
            for point, measured in enumerate(follow(base, seed, Uniform(GROUP), partial(scored, seed))):
                for name, values in measured.items():
                    found[name][b, point, s] = values
            print(base, seed, found["right"][b, :, s].mean(axis=(1, 2)), flush=True)
    facts = {"bases": np.array([*LEARNING_RATES]), "points": np.array(POINTS), "seeds": np.array(SEEDS)}
    return found | {"right": found["right"].astype(bool)} | facts


def scored(seed, trainer, problems):
    """Return the measures and verdicts [prompts, samples] of fresh samples."""
    policy = trainer.policy
    groups = LedgerSampler(policy, seed + 1000)([problem.prompt() for problem in problems], [SAMPLES] * len(problems))
    rows = []
    for problem, group in zip(problems, groups, strict=True):
        distinct = {rollout.completion.tokens: rollout.completion for rollout in group}
        gradients = completion_gradients(policy, encode(problem.text), [*distinct.values()])
        norms = dict(zip(distinct, gradients.square().sum(1).tolist(), strict=True))
        rows.append([[*measures(each.completion, norms[each.completion.tokens]), each.correct] for each in group])
    return dict(zip((*MEASURES, "right"), np.moveaxis(np.array(rows, float), -1, 0), strict=True))


def measures(completion, parameters):
    """Return ``MEASURES`` of a completion whose squared norm in all parameters is known."""
    missing = -np.expm1(completion.logprobs.astype(float))
    surprise = float(-completion.logprobs.sum())
    sums = [float((missing**2).sum()), float(missing.sum()), surprise]
    return [parameters, completion.score_norm, *sums, len(completion.tokens)]
