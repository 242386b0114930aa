"""The discounted variance of each prompt's graded rewards, shrunk towards the mean variance of all prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from apportion.checks import check_numbers, check_positive
from apportion.predictors.base import Predictor
from apportion.predictors.saved import SavedValues
from apportion.predictors.statistics.per_prompt import Range, rewards, saved_range
from apportion.predictors.statistics.pooled import DiscountedSums
from apportion.types import Batch, Belief, Needs, Prompt

BEFORE_THE_FIRST = 0.25


@dataclass
class RunningVariance(Predictor):
    """(strength V + squares) / (strength + freedom) by prompt id, for rewards of any size; needs no embeddings.

    ``squares`` sums the squared deviations of the prompt's rewards from their mean in each batch. ``freedom`` sums the
    number of rewards less one. V is the mean of squares / freedom over the prompts seen so far, with equal weights. A
    prompt never seen has V. Before the first batch every variance is 1/4, that of a fair coin. If all rewards so far
    were equal, every variance is 0.

    Each update of a prompt first multiplies its squares and freedom by ``discount``: 1 keeps all batches, 0 only the
    latest. A prompt with fewer than two rewards has no variance and is ignored. It does not predict success: the mean
    of its beliefs is always 0.5. The first batch sets the range of rewards, without 5% of them at either end. A
    batch widens it by its width at most, and by rewards farther out only if they are more than 5%. Rewards beyond are
    clipped.

    Reference: the moderated variance of G. K. Smyth, "Linear models and empirical Bayes methods for assessing
    differential expression in microarray experiments", 2004: the posterior under a scaled inverse chi-squared prior of
    ``strength`` degrees of freedom.
    Note: Smyth estimates the prior's variance and degrees of freedom together. Here the variance is V and the degrees
    of freedom are ``strength``.

    Args:
        discount: factor of a prompt's earlier squares and freedom at each of its updates, from 0 to 1.
        strength: degrees of freedom of the prior.

    >>> from apportion.types import Plan, Rollout
    >>> predictor, prompts = RunningVariance(strength=2), [Prompt("a"), Prompt("b"), Prompt("new")]
    >>> rewards = [[0.0, 0.5, 1.0], [0.5, 0.5, 0.5], []]
    >>> batch = Batch.start(prompts, predictor.predict(prompts)).add(
    ...     Plan([3, 3, 0]), [[Rollout(reward=reward) for reward in group] for group in rewards]
    ... )
    >>> predictor.update(batch)
    >>> predictor.predict(prompts).variance.tolist()
    [0.1875, 0.0625, 0.125]
    """

    discount: float = 0.9
    strength: float = 2.0

    name: ClassVar[str] = "running_variance"
    needs: ClassVar[Needs] = Needs()

    def __post_init__(self) -> None:
        check_numbers(self)
        check_positive(self, "strength")
        self._spreads = DiscountedSums(2, self.discount)
        self._range: Range | None = None

    def predict(self, prompts: Sequence[Prompt]) -> Belief:
        known_squares, known_freedom = self._spreads.of(self._spreads.by_id).T
        pooled = float((known_squares / known_freedom).mean()) if known_squares.size else BEFORE_THE_FIRST
        squares, freedom = self._spreads.of(prompt.id for prompt in prompts).T
        variance = (self.strength * pooled + squares) / (self.strength + freedom)
        ones = np.ones(len(prompts))
        return Belief(ones, ones, variance)

    def update(self, batch: Batch) -> None:
        seen, self._range = rewards(batch, self._range)
        self._spreads.add({each.prompt.id: (each.squares, each.trials - 1) for each in seen if each.trials > 1})

    def _memory(self) -> dict[str, Any]:
        return {"spreads": self._spreads.by_id, "range": self._range and list(self._range)}

    def _restore(self, saved: SavedValues) -> None:
        limits = saved_range(saved)
        self._spreads.restore(saved, "spreads", low=(0, 1))
        self._range = limits
