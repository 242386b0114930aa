"""MoPPS: Thompson draws of each prompt's success probability, and the prompts whose draws are nearest to a target.

Reference: Y. Qu et al., "Can Prompt Difficulty be Online Predicted for Accelerating RL Finetuning of Reasoning
Models?", arXiv 2507.04632 (2025). MoPPS learns alpha <- lam alpha + (1 - lam) alpha0 + successes, and beta likewise.
``DiscountedCounts(discount=lam)`` is that posterior, because its prior is not discounted. Any other predictor will do.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from apportion.selection.base import BeliefSelector
from apportion.types import Counts, Mask

SMALLEST = 1e-9
"""Least parameter of a Beta to draw from. A certain belief has a parameter of 0."""


@dataclass(kw_only=True)
class MoPPS(BeliefSelector):
    """Draws p ~ Beta(alpha, beta) for every prompt, and chooses those with the smallest (p - target)^2.

    It explores by the draws: the less is known about a prompt, the more often one falls near the target.

    Args:
        target: success probability that is wanted, .5 in the paper.

    Note: the probability of a choice has no closed form, so no importance weight undoes it.

    >>> from apportion.types import Prompt
    >>> selector = MoPPS()
    >>> selector.prepare([Prompt("a"), Prompt("b")])
    >>> sorted(selector.choose(2))
    [0, 1]
    """

    target: float = 0.5

    name: ClassVar[str] = "mopps"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.target <= 1:
            raise ValueError(f"target must be between 0 and 1, got {self.target}; it is a success probability")

    def _choose(self, allowed: Mask, count: int, generator: Generator) -> Counts:
        belief, places = self._predict(), np.flatnonzero(allowed)
        draws = generator.beta(np.maximum(belief.alpha, SMALLEST), np.maximum(belief.beta, SMALLEST))[places]
        return places[np.argsort((draws - self.target) ** 2, kind="stable")[:count]]
