"""Statistics of a batch by prompt: success counts of verified rollouts, and the variance of graded rewards."""

from typing import NamedTuple

import numpy as np

from apportion.types import Batch, Prompt


class Observation(NamedTuple):
    """The verified rollouts of one prompt in a batch: ``successes`` among ``trials``, which is at least 1."""

    prompt: Prompt
    successes: int
    trials: int

    @property
    def rate(self) -> float:
        """Share of correct rollouts."""
        return self.successes / self.trials


class Spread(NamedTuple):
    """The spread of one prompt's n rewards in a batch.

    ``squares`` is the sum of squared deviations from their mean, and ``freedom`` is n - 1, at least 1. Spreads of
    several prompts or batches are pooled by adding both.
    """

    prompt: Prompt
    squares: float
    freedom: int

    @property
    def variance(self) -> float:
        """The unbiased sample variance of the rewards."""
        return self.squares / self.freedom


def observations(batch: Batch) -> list[Observation]:
    """Return one observation per prompt id, in order of first appearance.

    Rollouts of a repeated id are pooled. A prompt without verified rollouts is left out.
    """
    pooled: dict[str, Observation] = {}
    for prompt, successes, trials in zip(batch.prompts, batch.successes.tolist(), batch.trials.tolist(), strict=True):
        if trials:
            seen = pooled.get(prompt.id, Observation(prompt, 0, 0))
            pooled[prompt.id] = Observation(seen.prompt, seen.successes + successes, seen.trials + trials)
    return list(pooled.values())


def spreads(batch: Batch) -> list[Spread]:
    """Return one spread per prompt id, in order of first appearance.

    Rewards of a repeated id are pooled. A prompt with fewer than two rewards has no sample variance and is left out.
    Equal rewards give exactly 0.

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
    # Subtract the first reward because the mean of equal numbers may be off by a rounding error.
    shifted = ((prompt, np.array(rewards) - rewards[0]) for prompt, rewards in pooled.values() if len(rewards) > 1)
    return [Spread(prompt, float(((each - each.mean()) ** 2).sum()), len(each) - 1) for prompt, each in shifted]
