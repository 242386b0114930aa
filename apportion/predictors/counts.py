"""Discounted counts of each prompt's successes and failures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from apportion.checks import LARGEST_INTEGER, check_numbers, check_positive
from apportion.predictors.base import Predictor
from apportion.predictors.saved import SavedValues
from apportion.predictors.statistics.per_prompt import observations
from apportion.predictors.statistics.pooled import DiscountedSums
from apportion.types import Batch, Belief, Prompt


@dataclass
class DiscountedCounts(Predictor):
    """Beta(prior_alpha + successes, prior_beta + failures) by prompt id, with discounted counts.

    Each batch with verified rollouts of a prompt first multiplies that prompt's counts by ``discount``: 1 keeps all
    batches, 0 only the latest. Counts of other prompts do not change. A prompt never seen has the prior.

    Args:
        discount: factor of a prompt's earlier counts at each of its batches, from 0 to 1.
        prior_alpha: successes that the prior is worth.
        prior_beta: failures that the prior is worth.

    >>> from apportion.types import Plan, Rollout
    >>> predictor, prompts = DiscountedCounts(discount=0.5), [Prompt("a"), Prompt("b")]
    >>> batch = Batch.start(prompts, predictor.predict(prompts)).add(Plan([4, 0]), [[Rollout(True)] * 4, []])
    >>> predictor.update(batch); predictor.update(batch)
    >>> predictor.predict(prompts).alpha.tolist()
    [7.0, 1.0]
    """

    discount: float = 0.9
    prior_alpha: float = 1.0
    prior_beta: float = 1.0

    name: ClassVar[str] = "counts"

    def __post_init__(self) -> None:
        check_numbers(self)
        check_positive(self, "prior_alpha", "prior_beta")
        self._counts = DiscountedSums(2, self.discount)

    def predict(self, prompts: Sequence[Prompt]) -> Belief:
        right, wrong = self._counts.of(prompt.id for prompt in prompts).T
        return Belief(self.prior_alpha + right, self.prior_beta + wrong)

    def update(self, batch: Batch) -> None:
        self._counts.add({prompt.id: (right, trials - right) for prompt, right, trials in observations(batch)})

    def _memory(self) -> dict[str, Any]:
        return {"counts": self._counts.by_id}

    def _restore(self, saved: SavedValues) -> None:
        self._counts.restore(saved, "counts", low=(0, 0), high=LARGEST_INTEGER)
