"""Statistics of a batch by prompt: success counts of verified rollouts, and the variance of graded rewards."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from apportion.predictors.saved import SavedValues
from apportion.types import LARGEST_REWARD, Batch, Floats, Prompt, Rollout

Value = TypeVar("Value")


class Observation(NamedTuple):
    """The verified rollouts of one prompt in a batch: ``successes`` among ``trials``; there is at least one."""

    prompt: Prompt
    successes: int
    trials: int

    @property
    def rate(self) -> float:
        """Share of correct rollouts."""
        return self.successes / self.trials


class Rewards(NamedTuple):
    """The rewards of one prompt in a batch, which are clipped to the range of rewards.

    ``squares`` is the sum of squared deviations from their mean, exactly 0 if all are equal. ``graded`` is whether one
    of them is at neither end of the range.
    """

    prompt: Prompt
    trials: int
    mean: float
    squares: float
    graded: bool


def by_prompt(batch: Batch, read: Callable[[Rollout], Value | None]) -> dict[str, tuple[Prompt, list[Value]]]:
    """Return by prompt id its first prompt and the value of ``read`` for its rollouts. Values of None are left out.

    The order is that of first appearance. Rollouts of a repeated id are pooled.
    """
    pooled: dict[str, tuple[Prompt, list[Value]]] = {}
    for prompt, rollouts in zip(batch.prompts, batch.rollouts, strict=True):
        if found := [value for rollout in rollouts if (value := read(rollout)) is not None]:
            pooled.setdefault(prompt.id, (prompt, []))[1].extend(found)
    return pooled


def observations(batch: Batch) -> list[Observation]:
    """Return one observation per prompt id, in order of first appearance.

    Rollouts of a repeated id are pooled. A prompt without verified rollouts is left out.
    """
    pooled = by_prompt(batch, lambda rollout: rollout.correct).values()
    return [Observation(prompt, sum(verdicts), len(verdicts)) for prompt, verdicts in pooled]


class Range(NamedTuple):
    """The range of the rewards seen so far, which holds 0 and 1."""

    low: float = 0.0
    high: float = 1.0


def widened(earlier: Range | None, rewards: Floats) -> Range:
    """Return the range after a batch with ``rewards`` [N], N at least 1. ``earlier`` is None for the first batch.

    The first batch sets it, without its extreme rewards: 5% at either end, and one at least if there are three or more.
    Each batch, the first one too, widens it to the rewards that are within its width of it. It is widened by its width
    if more than 5% of the batch are beyond. So a few rewards far out of range are clipped in every batch, and do not
    make all others look equal for ever. If they are more, they are what most of the variance is.

    >>> widened(None, np.array([1.0, 0.0, 1e6, -1.0, 0.5]))
    Range(low=-1.0, high=1.0)
    """
    ordered = np.sort(rewards)
    out = min(-(-len(ordered) // 20), (len(ordered) - 1) // 2)
    common = ordered[[out, -1 - out]]
    low, high = earlier or (min(0.0, common[0]), max(1.0, common[1]))
    room = high - low
    near = ordered[(ordered >= low - room) & (ordered <= high + room)]
    within = np.concatenate([[low, high], near, np.clip(common, low - room, high + room)])
    return Range(float(within.min()), float(within.max()))


def rewards(batch: Batch, earlier: Range | None = None) -> tuple[list[Rewards], Range | None]:
    """Return the rewards of each prompt id, in order of first appearance, and their range after the batch.

    ``earlier`` is the range before it, and None before the first batch. Rewards beyond the new range are clipped. Those
    of a repeated id are pooled. An id without a reward is left out.

    >>> from apportion.types import Belief, Plan, Rollout
    >>> batch = Batch.start([Prompt("a"), Prompt("b")], Belief.uniform(2))
    >>> batch = batch.add(Plan([3, 0]), [[Rollout(reward=reward) for reward in (0.0, 0.5, 1.0)], []])
    >>> [(seen.prompt.text, seen.trials, seen.mean, seen.squares) for seen in rewards(batch)[0]]
    [('a', 3, 0.5, 0.5)]
    """
    if not (pooled := by_prompt(batch, lambda rollout: rollout.reward)):
        return [], earlier
    limits = widened(earlier, np.concatenate([found for _, found in pooled.values()]))
    seen = []
    for prompt, found in pooled.values():
        clipped = np.clip(found, *limits)
        apart = clipped - clipped[0]  # because the mean of equal numbers may be off by a rounding error
        squares, graded = ((apart - apart.mean()) ** 2).sum(), ((clipped > limits.low) & (clipped < limits.high)).any()
        seen.append(Rewards(prompt, len(found), float(clipped.mean()), float(squares), bool(graded)))
    return seen, limits


def saved_range(saved: SavedValues) -> Range | None:
    """Return the range of a saved state, or None if no batch has set it. Raise ValueError for anything else."""
    if saved.values["range"] is None:
        return None
    return Range(*saved.row("range", (-LARGEST_REWARD, 1.0), (0.0, LARGEST_REWARD)))
