"""VIP with graded rewards (its Appendix E) in the lab, where the reward is the share of leading digits that are right.

Each prompt's rollouts are taken as its whole distribution. So the gradient's variance under RLOO has a closed form for
any number of rollouts, and every allocation is judged by the same prompts without noise of its own.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from apportion import Plan
from apportion.allocators import spend
from apportion.allocators.vip import minimise_noise
from apportion.lab.policy.base import base_policy
from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.world.task import encode, training_problems
from apportion.predictors import (
    EmpiricalBayes,
    GradedGaussianProcess,
    RunningVariance,
    SentenceTransformerEmbedder,
    Shuffled,
)
from apportion.types import Batch, Rollout
from benchmarks.evidence.learning import FIVE, HARD, learn_seeds
from benchmarks.gradients import completion_gradients

PROMPTS, DRAWN = 64, 48
PER_PROMPT, LOW, HIGH = 8, 3, 24
BATCH, VISITS, PERMUTATIONS, REPEATS = 16, (1, 2, 4), 50, 8
BANDS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def unbiased_variance(gram, rewards, n):
    """Return the total variance of a prompt's RLOO gradient from ``n`` [m] rollouts, each at least 2, [m].

    The prompt's rollouts are drawn from K equally likely ones with ``rewards`` [K] and inner products of gradients
    ``gram`` [K, K]. The gradient is a U-statistic with kernel (r - r')(h - h') / 2, so Hoeffding's formula holds.
    """
    K, centred = len(rewards), rewards - rewards.mean()
    mean = centred @ gram @ centred / K**2
    projections = (np.diag(centred) - rewards[:, None] / K + rewards[None] / K) / 2
    once = np.einsum("ij,jk,ik->i", projections, gram, projections).mean() - mean
    norms = np.diag(gram)
    apart = (rewards[:, None] - rewards[None]) ** 2 * (norms[:, None] + norms[None] - 2 * gram) / 4
    both = apart.mean() - mean
    return 2 / (n * (n - 1)) * (2 * (n - 2) * once + both)


def variances(base):
    """Return variance ratios to uniform by rule, one for each seed, and measured variances over Proposition E.2's."""
    rules: dict[str, list[float]] = {}
    means, ratios = [], {"norm": [], "vector": []}
    for seed in FIVE:
        problems = training_problems(PROMPTS, seed=1000 + seed)
        asked = [problem.prompt() for problem in problems]
        rewards, grams = _population(base, seed, problems)
        spread = rewards.var(axis=1)
        widths = np.arange(2, HIGH + 1)
        curves = np.stack([unbiased_variance(gram, own, widths) for gram, own in zip(grams, rewards, strict=True)])
        uniform = curves[:, PER_PROMPT - 2].sum()

        def judge(counts, curves=curves, uniform=uniform):
            return float(curves[np.arange(len(counts)), counts - 2].sum() / uniform)

        rng = np.random.default_rng(seed)
        found = {
            "exact": judge(_vip(spread)),
            "exact, shuffled": float(np.mean([judge(_vip(rng.permutation(spread))) for _ in range(PERMUTATIONS)])),
            "least, known gradients": judge(_least(curves)),
        }
        judged: dict[str, list[float]] = {}
        for _ in range(REPEATS):
            for name, predictor in _predictors().items():
                for visits, belief in _learnt(predictor, asked, rewards, rng).items():
                    judged.setdefault(f"{name} | {visits}", []).append(judge(_vip(belief.variance)))
        found |= {name: float(np.mean(each)) for name, each in judged.items()}
        for name, value in found.items():
            rules.setdefault(name, []).append(value)
        for gram, own in zip(grams, rewards, strict=True):
            if own.var() > 0:
                norms, predicted, eight = np.sqrt(np.diag(gram)), own.var() / (PER_PROMPT - 1), np.array([PER_PROMPT])
                means.append(float(own.mean()))
                norm = unbiased_variance(np.outer(norms, norms), own, eight)[0]
                ratios["norm"].append(norm / (predicted * norms.var()) if norms.var() > 1e-12 else np.nan)
                vector = unbiased_variance(gram, own, eight)[0]
                ratios["vector"].append(vector / (predicted * (np.diag(gram).mean() - gram.mean())))
    band = np.digitize(means, BANDS[1:-1])
    by_band = {
        f"{low:g} to {high:g}": {
            kind: np.nanquantile(np.array(each)[band == b], (0.1, 0.5, 0.9)).tolist() for kind, each in ratios.items()
        }
        for b, (low, high) in enumerate(pairwise(BANDS))
        if (band == b).sum() >= 5
    }
    return {"ratios": rules, "over formula": by_band}


def learning(rule):
    """Return learning curves with the graded reward, on the hard base."""
    return learn_seeds(rule, {**HARD, "rollouts": 6400, "reward": "share", "estimator": "rloo"}, FIVE)


def _population(base, seed, problems):
    """Return rewards [P, K] and inner products of gradients [K, K] of each prompt's rollouts."""
    policy = base_policy(base)
    sampler = LedgerSampler(policy, seed, reward="share")
    rewards, grams = [], []
    for problem, group in zip(
        problems, sampler([each.prompt() for each in problems], [DRAWN] * len(problems)), strict=True
    ):
        distinct = {rollout.completion.tokens: rollout.completion for rollout in group}
        gradients = completion_gradients(policy, encode(problem.text), [*distinct.values()])
        gram = (gradients @ gradients.T).double().numpy()
        place = {tokens: i for i, tokens in enumerate(distinct)}
        which = [place[rollout.completion.tokens] for rollout in group]
        grams.append(gram[np.ix_(which, which)])
        rewards.append([rollout.reward for rollout in group])
    return np.array(rewards, float), grams


def _vip(variance):
    return minimise_noise(variance, PER_PROMPT * len(variance), "rloo", LOW, HIGH)


def _least(curves):
    """Return the counts of least variance, for ``curves`` [P, n - 2] that are known."""
    drops = curves[:, LOW - 2 : -1] - curves[:, LOW - 1 :]
    drops = np.minimum.accumulate(np.maximum(drops, 0.0), axis=1)  # rounding may break convexity
    return spend(drops, PER_PROMPT * len(curves), np.full(len(curves), LOW))


def _predictors():
    embedder = SentenceTransformerEmbedder()
    return {
        "graded gp": GradedGaussianProcess(embedder),
        "graded gp as printed": GradedGaussianProcess(embedder, noise=1e-6, scale=1.0),
        "running variance": RunningVariance(),
        "empirical Bayes": EmpiricalBayes(),
        "running variance, shuffled": Shuffled(RunningVariance()),
    }


def _learnt(predictor, prompts, rewards, rng):
    """Return the beliefs about all prompts after some visits, each with a group of 8 of its rollouts."""
    predictor.prepare(prompts)
    found = {}
    for visit in range(1, max(VISITS) + 1):
        for places in np.split(rng.permutation(len(prompts)), range(BATCH, len(prompts), BATCH)):
            some = [prompts[q] for q in places]
            drawn = [[Rollout(reward=float(reward)) for reward in rng.choice(rewards[q], PER_PROMPT)] for q in places]
            batch = Batch.start(some, predictor.predict(some))
            predictor.update(batch.add(Plan([PER_PROMPT] * len(some)), drawn))
        if visit in VISITS:
            found[visit] = predictor.predict(prompts)
    return found
