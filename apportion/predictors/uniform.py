"""The same fixed belief about every prompt."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apportion.checks import check_numbers, check_positive
from apportion.predictors.base import Predictor
from apportion.types import Batch, Belief, Needs, Prompt


@dataclass
class UniformPrior(Predictor):
    """Beta(alpha, beta) for every prompt; learns nothing. The default, Beta(1, 1), is uniform on [0, 1].

    Args:
        alpha: successes that the prior is worth.
        beta: failures that the prior is worth.

    >>> UniformPrior(alpha=1, beta=3).predict([Prompt("a"), Prompt("b")]).mean.tolist()
    [0.25, 0.25]
    """

    alpha: float = 1.0
    beta: float = 1.0

    name: ClassVar[str] = "uniform"
    needs: ClassVar[Needs] = Needs()

    def __post_init__(self) -> None:
        check_numbers(self)
        check_positive(self, "alpha", "beta")

    def predict(self, prompts: Sequence[Prompt]) -> Belief:
        return Belief(np.full(len(prompts), self.alpha), np.full(len(prompts), self.beta))

    def update(self, batch: Batch) -> None:
        """Do nothing, because the belief is fixed."""
