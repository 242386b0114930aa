"""HORA's theory on small cases: concave hit utility, greedy against brute force, and batches without a reward."""

from itertools import product

import numpy as np

from apportion.allocators import HORA
from apportion.allocators.hora import hit_gains, hit_utility, maximise_hits
from apportion.types import Belief, Prompt, Rollout
from benchmarks.evidence.hora_hits_measured import drawn

CASES = 300
RARE = (0.0005, 0.001, 0.003, 0.01)
PROMPTS = 64


def theory():
    """Return how often hit utility is concave, and how often greedy allocation is as good as brute force."""
    rng = np.random.default_rng(0)
    beliefs = Belief(*np.exp(rng.uniform(np.log(0.01), np.log(100), (2, 10_000))))
    gains = hit_gains(beliefs, 64)
    return {
        "concave": float((np.diff(gains, axis=1) <= 0).all(axis=1).mean()),
        "optimal": float(np.mean([_is_optimal(rng) for _ in range(CASES)])),
    }


def rare():
    """Return what HORA does if rewards are rare: plans for batches without one, and batches of equally hard prompts."""
    even = [
        _spread(prompts, pre, each, right)
        for prompts, pre, each, right in product((1, 2, 7, 16, 64), (1, 2, 4, 8), (8, 16), (True, False))
        if pre < each
    ]
    equal, rule = {}, HORA(pre_rollouts=4, rollouts_per_prompt=8)
    for p in RARE:
        _, _, extra = drawn(np.full(PROMPTS, p), rule, 400, seed=0)
        equal[str(p)] = {"moved": float(np.maximum(extra - 4, 0).sum() / extra.sum())}
    return {"even": float(np.mean([spread <= 1 for spread in even])), "plans": len(even), "equal": equal}


def _is_optimal(rng):
    """Return whether the allocation of a random small batch is as good as the best of all allocations."""
    prompts, pre = int(rng.integers(2, 5)), int(rng.integers(1, 5))
    extra, high = int(rng.integers(0, 9)), int(rng.integers(pre + 4, pre + 10))
    posterior = Belief.uniform(prompts).condition(rng.integers(0, pre + 1, prompts), np.full(prompts, pre))
    low = np.full(prompts, pre)
    extra = min(extra, prompts * (high - pre))
    found = maximise_hits(posterior, pre * prompts + extra, low, high) - low
    best = max(
        hit_utility(posterior, np.array(each)).sum()
        for each in product(range(min(extra, high - pre) + 1), repeat=prompts)
        if sum(each) == extra
    )
    return bool(found.sum() == extra and hit_utility(posterior, found).sum() >= best - 1e-12)


def _spread(prompts, pre, each, right):
    """Return the largest less the smallest number of extra rollouts if all pre-rollouts are right, or all wrong."""
    allocator = HORA(pre_rollouts=pre, rollouts_per_prompt=each)
    batch = allocator.start([Prompt(str(q)) for q in range(prompts)])
    batch = batch.add(allocator.plan(batch), [[Rollout(right)] * pre] * prompts)
    return int(np.ptp(allocator.plan(batch).counts))
