"""Counts in proportion to weights: the integers within the bounds that are nearest to the shares of the budget."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apportion.allocators.spending.budget import BudgetedAllocator
from apportion.checks import check_least, check_positive
from apportion.types import Batch, Belief, Counts, Floats, Plan


def nearness_gains(shares: Floats, low: Counts, high: int, width: int) -> Floats:
    """Return by how much each rollout beyond ``low`` [P] lowers the squared distance to ``shares`` [P], [P, width].

    Going from n to n + 1 lowers (n - share)^2 by 2 (share - n) - 1. That falls by 2 per rollout, so spending on the
    largest of these gains gives the nearest integers, in least squares, exactly. -inf marks rollouts beyond ``high``.

    >>> nearness_gains(np.array([2.5, 0.5]), low=np.array([1, 1]), high=3, width=3).tolist()
    [[2.0, 0.0, -inf], [-2.0, -4.0, -inf]]
    """
    n = low[:, None] + np.arange(width)
    return np.where(n < high, 2 * (shares[:, None] - n) - 1, -np.inf)


@dataclass(frozen=True, kw_only=True)
class ProportionalAllocator(BudgetedAllocator):
    """Splits a budget in proportion to weights, which subclasses compute from the belief about each prompt.

    Args:
        low: the fewest rollouts of one prompt, at least 1.
        high: the most rollouts of one prompt.
        epsilon: added to every weight, above 0, so that no prompt's share is 0 or the whole budget.
    """

    low: int = 3
    epsilon: float = 0.05

    one_round: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, "a prompt without rollouts teaches nothing", low=1)
        check_positive(self, "epsilon")

    @abstractmethod
    def weights(self, belief: Belief) -> Floats:
        """Return weights [P], above 0. A prompt's share of the budget is its weight over the sum of all."""

    def plan(self, batch: Batch) -> Plan:
        weights, low = self.weights(batch.belief), np.full(len(batch.prompts), self.low)
        shares = self._total(len(batch.prompts)) * weights / (batch.costs @ weights)
        counts = self._spend(batch, nearness_gains(shares, low, self.high, self._width(batch, low)), low)
        return Plan(np.maximum(counts - batch.asked, 0))
