"""Uniform: the same number of rollouts for every prompt, as GRPO, Dr. GRPO and RLOO ship it. The rule to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apportion.allocators.base import Allocator
from apportion.types import Batch, Plan


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

    def __post_init__(self) -> None:
        if self.rollouts_per_prompt < 1:
            raise ValueError(
                f"rollouts_per_prompt must be at least 1, got {self.rollouts_per_prompt}; "
                "use 2 or more for group baselines"
            )

    @property
    def fixed_total(self) -> bool:
        return True

    def plan(self, batch: Batch) -> Plan:
        return Plan(np.maximum(self.rollouts_per_prompt - batch.asked, 0))
