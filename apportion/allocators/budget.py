"""A budget of rollouts per batch, and what the allocators that spend one have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from apportion.allocators.base import PredictiveAllocator
from apportion.allocators.solver import most_extra, spend
from apportion.predictors import Predictor, UniformPrior
from apportion.types import Batch, Counts, Floats


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


@dataclass(frozen=True, kw_only=True)
class BudgetedAllocator(PredictiveAllocator):
    """An allocator whose batches have a budget: the settings are the same for all of them.

    Args:
        rollouts_per_prompt: budget per prompt, on average; the class's own default if neither is given.
        budget: or the budget of a batch in total.
        high: the most that one prompt may get.
        predictor: what it believes before the first rollout.
    """

    rollouts_per_prompt: float | None = None
    budget: int | None = None
    high: int = 64
    predictor: Predictor = field(default_factory=UniformPrior)

    usual_rollouts: ClassVar[float] = 8.0
    """Rollouts per prompt where no budget is given."""

    def __post_init__(self) -> None:
        self._budget  # noqa: B018 - checks the bounds

    @property
    def least(self) -> int:
        """The least that every prompt gets."""
        return 1

    @property
    def fixed_total(self) -> bool:
        return True

    @property
    def _budget(self) -> Budget:
        average = self.rollouts_per_prompt
        if average is None and self.budget is None:
            average = self.usual_rollouts
        return Budget(self.least, self.high, average, self.budget)

    def check(self, prompts: int) -> None:
        self._budget.of(prompts)

    def _width(self, batch: Batch, low: Counts) -> int:
        """How many rollouts beyond its ``low`` [P] one prompt could get: the width of the gains for ``_spend``."""
        return most_extra(low, self.high, self._budget.of(len(batch.prompts)))

    def _spend(self, batch: Batch, gains: Floats, low: Counts) -> Counts:
        """Counts [P] in all, of which ``low`` [P] are granted, that spend the batch's budget on the largest gains."""
        return spend(gains, self._budget.of(len(batch.prompts)), low)
