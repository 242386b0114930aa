"""The protocol of a baseline: predict before the batch, update after it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from apportion.predictors.saved import Learner
from apportion.types import Batch, Floats, Needs, Prompt


class Baseline(Learner, ABC):
    """Predicts each prompt's reward from earlier batches alone, for an estimator that subtracts it.

    Call ``predict`` before ``update`` with the same batch; otherwise the gradient is biased. Subclasses are
    dataclasses, whose fields are their settings; learnt state is not compared.
    """

    kind: ClassVar[str] = "baseline"

    @property
    def needs(self) -> Needs:
        """What this baseline needs to know of each rollout."""
        return Needs()

    @property
    def reads_rates(self) -> bool:
        """Whether it starts from known success rates of prompts, ``Prompt.rate``."""
        return False

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Announce prompts before training. Optional, often faster."""

    @abstractmethod
    def predict(self, prompts: Sequence[Prompt]) -> Floats:
        """Return the baseline [P] of ``prompts``, known or not; P may be 0. It never changes a later prediction."""

    @abstractmethod
    def update(self, batch: Batch) -> None:
        """Learn from a finished batch. Prompts without a verified rollout are ignored."""

    def _saved_settings(self) -> dict[str, Any]:
        return {}  # a run compares the settings elsewhere
