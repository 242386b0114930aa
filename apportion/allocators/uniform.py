"""Uniform: the same number of rollouts for every prompt, as GRPO, Dr. GRPO and RLOO ship it. The rule to beat."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apportion.allocators.base import Allocator
from apportion.types import Batch, Counts, Plan


def even_split(budget: int, low: Counts, high: int) -> Counts:
    """``budget`` rollouts as even as the bounds allow: integers [P], at least ``low`` [P], first prompts first.

    The budget must lie within the bounds.

    >>> even_split(8, np.array([1, 1, 1]), high=4).tolist(), even_split(9, np.array([5, 1, 1]), high=6).tolist()
    ([3, 3, 2], [5, 2, 2])
    """
    level = bisect_right(range(high + 1), budget, key=lambda n: int(np.clip(n, low, high).sum())) - 1
    counts = np.maximum(low, level)
    below_high = np.flatnonzero((counts == level) & (level < high))
    counts[below_high[: budget - int(counts.sum())]] += 1
    return counts


@dataclass(frozen=True)
class Uniform(Allocator):
    """``rollouts_per_prompt`` for every prompt, whatever is known of it.

    >>> from apportion import Prompt
    >>> allocator = Uniform(rollouts_per_prompt=4)
    >>> allocator.plan(allocator.start([Prompt("a"), Prompt("b")])).counts.tolist()
    [4, 4]
    """

    rollouts_per_prompt: int = 8

    name: ClassVar[str] = "uniform"
    needs_labels: ClassVar[bool] = False
    separable: ClassVar[bool] = True
    fixed_total: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.rollouts_per_prompt < 1:
            raise ValueError(
                f"rollouts_per_prompt must be at least 1, got {self.rollouts_per_prompt}; "
                "use 2 or more for group baselines"
            )

    def plan(self, batch: Batch) -> Plan:
        return Plan(np.maximum(self.rollouts_per_prompt - batch.asked, 0))
