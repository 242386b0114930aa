"""A control for experiments: another predictor's beliefs, assigned to random prompts of the batch.

Shuffling keeps the distribution of the beliefs and removes the knowledge of which prompt they belong to. A gain that
remains under shuffling is not due to the predictor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from apportion.checks import check_least, check_numbers
from apportion.predictors.base import Predictor
from apportion.predictors.saved import SavedValues
from apportion.types import Batch, Belief, Counts, Floats, Needs, Prompt


@dataclass
class Shuffled(Predictor):
    """Beliefs of ``predictor``, permuted among the prompts of one ``predict`` call.

    The permutation depends on ``seed`` and on the number of updates so far, so a step's plan is repeatable.

    Args:
        predictor: the predictor whose beliefs are permuted.
        seed: seed of the permutations.

    >>> from apportion.predictors.uniform import UniformPrior
    >>> Shuffled(UniformPrior()).predict([Prompt("a"), Prompt("b")]).mean.tolist()
    [0.5, 0.5]
    """

    predictor: Predictor
    seed: int = 0

    name: ClassVar[str] = "shuffled"

    def __post_init__(self) -> None:
        check_numbers(self)
        check_least(self, "any other integer will do", seed=0)
        self._updates = 0

    @property
    def needs(self) -> Needs:
        return self.predictor.needs

    @property
    def reads_texts(self) -> bool:
        return self.predictor.reads_texts

    @property
    def reads_rates(self) -> bool:
        return self.predictor.reads_rates

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        self.predictor.prepare(prompts)

    def predict(self, prompts: Sequence[Prompt]) -> Belief:
        belief, order = self.predictor.predict(prompts), self._order(prompts)
        return Belief(belief.alpha[order], belief.beta[order], belief.variance[order])

    def expected_rewards(self, prompts: Sequence[Prompt]) -> Floats:
        return self.predictor.expected_rewards(prompts)[self._order(prompts)]

    def update(self, batch: Batch) -> None:
        self.predictor.update(batch)
        self._updates += 1

    def _order(self, prompts: Sequence[Prompt]) -> Counts:
        return np.random.default_rng([self.seed, self._updates]).permutation(len(prompts))

    def _settings(self) -> dict[str, Any]:
        return {"seed": self.seed, "inner": self.predictor.name}

    def _memory(self) -> dict[str, Any]:
        return {"updates": self._updates, "inner": self.predictor.state_dict()}

    def _restore(self, saved: SavedValues) -> None:
        updates = saved.count("updates")
        self.predictor.load_state_dict(saved.state("inner"))
        self._updates = updates
