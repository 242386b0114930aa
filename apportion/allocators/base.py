"""The allocator protocol; budgets; and ``spend``, the one solver behind every rule with a fixed budget."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from apportion.predictors import Predictor
from apportion.types import Batch, Belief, Counts, Floats, Group, Plan, Prompt


class Allocator(ABC):
    """Decides how many rollouts each prompt gets. Its settings are its fields; what it learns is in ``observe`` alone.

    ``plan`` and ``groups`` are pure functions of the batch: the same batch gives the same answer on every rank, after a
    restart, and in a replay. A driver calls ``start``, then ``plan`` and ``Batch.add`` until the plan is empty, then
    ``groups``, and after the update ``observe``.
    """

    name: ClassVar[str]
    needs_labels: ClassVar[bool] = True
    """Whether it reads ``Rollout.correct``."""
    separable: ClassVar[bool] = False
    """Whether prompts are independent, so that each may run as a batch of one with no barrier between them."""
    fixed_total: ClassVar[bool] = False
    """Whether the number of rollouts of a batch is known before the first is drawn."""

    def check(self, prompts: int) -> None:  # noqa: B027 - a hook, empty where every size will do
        """Raises ValueError where a batch of ``prompts`` prompts cannot be planned; ``start`` calls it too."""

    def prepare(self, prompts: Sequence[Prompt]) -> None:  # noqa: B027 - a hook, empty where nothing is learnt
        """Makes a data set known before training, so that no step waits for embeddings."""

    def start(self, prompts: Sequence[Prompt]) -> Batch:
        """An empty batch with the belief held before any of its rollouts."""
        self.check(len(prompts))
        return Batch.start(prompts, Belief.uniform(len(prompts)))

    @abstractmethod
    def plan(self, batch: Batch) -> Plan:
        """The next round; falsy when the batch is finished."""

    def groups(self, batch: Batch) -> list[Group]:
        """The finished batch as groups for the estimator, one a prompt, prompts without rollouts left out."""
        return [
            Group(prompt, rollouts, np.ones(len(rollouts), bool))
            for prompt, rollouts in zip(batch.prompts, batch.rollouts, strict=True)
            if rollouts
        ]

    def observe(self, batch: Batch) -> None:  # noqa: B027 - a hook, empty where nothing is learnt
        """Learns from a finished batch. Call once a batch, after the update."""

    def state_dict(self) -> dict[str, Any]:
        """Everything learnt so far, to be saved with a checkpoint."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what ``state_dict`` gave."""
        if state:
            raise ValueError(
                f"{type(self).__name__} keeps no state, got {sorted(state)}; is this another allocator's checkpoint?"
            )


class PredictiveAllocator(Allocator):
    """An allocator that plans from what its predictor believes, and learns through it alone."""

    predictor: Predictor

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        self.predictor.prepare(prompts)

    def start(self, prompts: Sequence[Prompt]) -> Batch:
        self.check(len(prompts))
        return Batch.start(prompts, self.predictor.predict(prompts))

    def observe(self, batch: Batch) -> None:
        self.predictor.update(batch)

    def state_dict(self) -> dict[str, Any]:
        return self.predictor.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.predictor.load_state_dict(state)


@dataclass(frozen=True)
class Budget:
    """Rollouts of a batch: ``rollouts_per_prompt`` on average, or ``total`` whatever its size.

    Each prompt gets between ``low`` and ``high`` of them.

    >>> Budget(low=3, high=24, rollouts_per_prompt=8).of(prompts=10)
    80
    """

    low: int
    high: int
    rollouts_per_prompt: float | None = None
    total: int | None = None

    def __post_init__(self) -> None:
        if self.high < self.low:
            raise ValueError(
                f"high must be at least {self.low}, the least every prompt gets, got {self.high}; raise high"
            )
        if (self.rollouts_per_prompt is None) == (self.total is None):
            raise ValueError(
                f"give either rollouts_per_prompt or budget, got {self.rollouts_per_prompt} and {self.total}; "
                "budget counts a whole batch"
            )
        if self.rollouts_per_prompt is not None and not self.low <= self.rollouts_per_prompt <= self.high:
            raise ValueError(
                f"rollouts_per_prompt must be between {self.low} and {self.high}, got {self.rollouts_per_prompt}; "
                "change it or the bounds"
            )

    def of(self, prompts: int) -> int:
        """Rollouts for a batch of ``prompts``; a ValueError where the bounds of its prompts rule that out."""
        total = int(self.rollouts_per_prompt * prompts) if self.total is None else self.total  # type: ignore[operator]
        if not prompts * self.low <= total <= prompts * self.high:
            raise ValueError(
                f"budget must be between {prompts * self.low} and {prompts * self.high} for {prompts} prompts, "
                f"got {total}; change the budget or the bounds"
            )
        return total


def spend(gains: Floats, budget: int, low: Counts) -> Counts:
    """Rollouts per prompt [P] that maximise the total gain: ``low`` [P] each, the rest where the next one gains most.

    ``gains[q, l]`` [P, W] is what prompt q gains from its rollout number ``low[q] + l + 1``; it must not increase
    along l (diminishing returns), and -inf marks rollouts that the prompt may not have. Then taking the largest gains
    is exactly optimal among integer allocations, so no relaxation and no rounding is needed, only a partial sort:
    O(P W) time, and about twice the memory of ``gains``. Equal gains go to the prompt that has received fewest of
    them, then by prompt order.

    Raises ValueError where the budget lies outside ``[low.sum(), low.sum() + rollouts allowed]``.

    Reference: B. Fox, Discrete optimization via marginal analysis, Management Science 13 (1966). It replaces the
    continuous relaxation, bisection and rounding of arXiv 2602.01601 (Theorems 5.1 and 5.2, Algorithm 2).

    >>> spend(np.array([[0.5, 0.1], [0.4, 0.3]]), budget=4, low=np.array([1, 1])).tolist()
    [2, 2]
    """
    extra = int(budget) - int(low.sum())
    allowed = np.isfinite(gains).sum(axis=1)
    if not 0 <= extra <= allowed.sum():
        raise ValueError(
            f"budget must be between {low.sum()} and {low.sum() + allowed.sum()} for these {len(low)} prompts, "
            f"got {budget}; change the budget or the bounds"
        )
    if extra == 0:
        return low.copy()
    flat = gains.ravel()
    threshold = np.partition(flat, flat.size - extra)[flat.size - extra]
    above: Counts = (gains > threshold).sum(axis=1)
    ties = (gains == threshold).sum(axis=1)
    counts: Counts = low + above + even_split(extra - int(above.sum()), np.zeros_like(ties), ties)
    return counts


def most_extra(low: Counts, high: int, budget: int) -> int:
    """The most rollouts beyond its ``low`` [P] that one prompt could get: the width W of the gains for ``spend``."""
    return max(0, min(high - int(low.min(initial=high)), budget - int(low.sum())))


def even_split(budget: int, low: Counts, high: int | Counts) -> Counts:
    """``budget`` rollouts as even as the bounds allow: integers [P], at least ``low`` [P], first prompts first.

    ``high`` is one bound for all, or [P]. The budget must lie within the bounds.

    >>> even_split(8, np.array([1, 1, 1]), high=4).tolist(), even_split(9, np.array([5, 1, 1]), high=6).tolist()
    ([3, 3, 2], [5, 2, 2])
    """
    levels = range(int(np.max(high)) + 1)
    level = bisect_right(levels, budget, key=lambda n: int(np.maximum(low, np.minimum(n, high)).sum())) - 1
    counts: Counts = np.maximum(low, np.minimum(level, high))
    at_level = np.flatnonzero((counts == level) & (level < high))
    counts[at_level[: budget - int(counts.sum())]] += 1
    return counts
