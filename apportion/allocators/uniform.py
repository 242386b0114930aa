"""Uniform: the same number of rollouts for every prompt, the default of GRPO, Dr. GRPO and RLOO."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from apportion.allocators.base import Allocator, Size
from apportion.allocators.spending.budget import BudgetedAllocator
from apportion.allocators.spending.solver import MOST_ROLLOUTS, check_table
from apportion.checks import check_least
from apportion.types import Batch, Needs, Plan
from apportion.untrusted import shown


@dataclass(frozen=True)
class Uniform(Allocator):
    """The same number of rollouts for every prompt; any rewards, binary or graded.

    Args:
        rollouts_per_prompt: by default the number of the engine that trains, and 8 without one.

    >>> from apportion import Prompt
    >>> allocator = Uniform(rollouts_per_prompt=4)
    >>> allocator.plan(allocator.start([Prompt("a"), Prompt("b")])).counts.tolist()
    [4, 4]
    """

    rollouts_per_prompt: int | None = None

    name: ClassVar[str] = "uniform"
    one_round: ClassVar[bool] = True
    separable: ClassVar[bool] = True
    adapts: ClassVar[bool] = False
    usual_rollouts: ClassVar[int] = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, "use 2 or more for group baselines", rollouts_per_prompt=1)
        if self._each > MOST_ROLLOUTS:
            raise ValueError(
                f"rollouts_per_prompt must be at most {MOST_ROLLOUTS}, got {shown(self.rollouts_per_prompt)}; lower it"
            )

    def size(self, prompts: int) -> Size:
        total = self._each * prompts
        return Size(asked=total, kept=total, exact=True, rounds=1)

    def plan(self, batch: Batch) -> Plan:
        return Plan(np.maximum(self._each - batch.asked, 0))

    @property
    def _each(self) -> int:
        return self.usual_rollouts if self.rollouts_per_prompt is None else self.rollouts_per_prompt


@dataclass(frozen=True, kw_only=True)
class Even(BudgetedAllocator):
    """An even split of any budget, in rollouts or in tokens: the control for rules with the same budget.

    Counts differ by at most one. The first prompts get one more from what remains; under a token budget the first that
    it still pays for. Unlike ``Uniform`` it couples the prompts of a batch. Its predictor does not matter, and any
    rewards will do, binary or graded.

    Args:
        rollouts_per_prompt: budget per prompt, on average, whole or not. Without any budget it is the number of the
            engine that trains, and 8 without one.
        budget: or the budget of a batch in total.
        tokens_per_prompt: or a budget in tokens per prompt, on average; a completion costs its predicted length.
        lengths: predicts the length of a completion; needed with ``tokens_per_prompt``, and only then.
        high: the most rollouts of one prompt.
        predictor: gives the belief that is logged. It does not change the counts.

    >>> from apportion import Prompt
    >>> from apportion.predictors import MeanLengths
    >>> prompts = [Prompt("a"), Prompt("b")]
    >>> allocator = Even(rollouts_per_prompt=2.5)
    >>> allocator.plan(allocator.start(prompts)).counts.tolist()
    [3, 2]
    >>> allocator = Even(tokens_per_prompt=250, lengths=MeanLengths(initial=100))
    >>> allocator.plan(allocator.start(prompts)).counts.tolist()
    [3, 2]
    """

    name: ClassVar[str] = "even"
    one_round: ClassVar[bool] = True
    adapts: ClassVar[bool] = False

    @property
    def needs(self) -> Needs:
        return replace(super().needs, binary=False)

    def plan(self, batch: Batch) -> Plan:
        low = np.zeros(len(batch.prompts), np.int64)
        level = self._total(len(batch.prompts)) // max(1, int(batch.costs.sum()))
        width = min(level + 1, self.high)
        check_table(len(low), width)
        gains = np.zeros((len(low), width))  # with equal gains each prompt gets one in turn
        return Plan(np.maximum(self._spend(batch, gains, low) - batch.asked, 0))
