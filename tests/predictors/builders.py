"""Small builders shared by the predictor tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from apportion.predictors import PrecomputedEmbeddings
from apportion.types import Batch, Belief, Plan, Prompt, Rollout


def make_prompts(count: int, prefix: str = "prompt") -> list[Prompt]:
    return [Prompt(f"{prefix} {number}") for number in range(count)]


def make_batch(prompts: Sequence[Prompt], successes: Sequence[int], trials: Sequence[int]) -> Batch:
    """Return a finished batch with ``successes`` [P] among ``trials`` [P], and one more failed rollout per prompt."""
    rollouts = [[Rollout(i < s, score_norm=1.0) for i in range(n)] for s, n in zip(successes, trials, strict=True)]
    return Batch.start(prompts, Belief.uniform(len(prompts))).add(Plan(np.array(trials) + 1), rollouts)


def graded_batch(
    prompts: Sequence[Prompt], rewards: Sequence[Sequence[float]], score_norm: float | None = None
) -> Batch:
    """Return a finished batch with these rewards, one list per prompt, and no verdicts."""
    rollouts = [[Rollout(reward=float(reward), score_norm=score_norm) for reward in group] for group in rewards]
    plan = Plan(np.array([len(group) for group in rewards], np.int64))
    return Batch.start(prompts, Belief.uniform(len(prompts))).add(plan, rollouts)


def random_batch(rng: np.random.Generator, prompts: Sequence[Prompt], size: int) -> Batch:
    """Return a batch of ``size`` distinct prompts with 1 to 16 rollouts each, of any success rate."""
    chosen = rng.choice(len(prompts), size, replace=False)
    trials = rng.integers(1, 17, size)
    return make_batch([prompts[q] for q in chosen], rng.binomial(trials, rng.random(size)).tolist(), trials.tolist())


def embedder_of(prompts: Sequence[Prompt], array: object) -> PrecomputedEmbeddings:
    return PrecomputedEmbeddings.from_array(prompts, array)


def embeddings(count: int, dimensions: int) -> np.ndarray:
    """Return normal embeddings [count, dimensions], the same at each call."""
    return np.random.default_rng(0).normal(size=(count, dimensions)).astype(np.float32)
