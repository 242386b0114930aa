"""What a batch tells about the variance of graded rewards, prompt by prompt."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from apportion.types import Batch, Prompt


class Spread(NamedTuple):
    """``squares``: squared deviations of a prompt's n rewards from their mean, summed; ``freedom``: n - 1, at least 1.

    Spreads of several prompts, or batches, pool by adding both.
    """

    prompt: Prompt
    squares: float
    freedom: int

    @property
    def variance(self) -> float:
        """The unbiased sample variance of the rewards."""
        return self.squares / self.freedom


def spreads(batch: Batch) -> list[Spread]:
    """One spread a prompt id, by first appearance; the rewards of a repeated id are taken together.

    A prompt with fewer than two rewards has no sample variance, and is left out. Equal rewards give exactly 0.

    >>> from apportion.types import Belief, Plan, Rollout
    >>> batch = Batch.start([Prompt("a"), Prompt("b")], Belief.uniform(2))
    >>> rewards = [[0.0, 0.5, 1.0], [0.7]]
    >>> batch = batch.add(Plan([3, 1]), [[Rollout(reward=reward) for reward in group] for group in rewards])
    >>> [(seen.prompt.text, seen.squares, seen.freedom) for seen in spreads(batch)]
    [('a', 0.5, 2)]
    """
    pooled: dict[str, tuple[Prompt, list[float]]] = {}
    for prompt, rollouts in zip(batch.prompts, batch.rollouts, strict=True):
        _, rewards = pooled.setdefault(prompt.id, (prompt, []))
        rewards.extend(rollout.reward for rollout in rollouts if rollout.reward is not None)
    return [_spread(prompt, rewards) for prompt, rewards in pooled.values() if len(rewards) > 1]


def _spread(prompt: Prompt, rewards: list[float]) -> Spread:
    # Relative to the first reward: the mean of equal numbers may be off by a rounding, their differences are not.
    shifted = np.array(rewards) - rewards[0]
    return Spread(prompt, float(((shifted - shifted.mean()) ** 2).sum()), len(rewards) - 1)
