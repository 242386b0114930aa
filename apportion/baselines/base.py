"""The protocol of a baseline: predict before the batch, update after it."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from apportion.predictors.base import check_source
from apportion.predictors.saved import SavedValues
from apportion.types import Batch, Floats, Needs, Prompt


class Baseline(ABC):
    """Predicts each prompt's reward from earlier batches alone, for an estimator that subtracts it.

    Call ``predict`` before ``update`` with the same batch; otherwise the gradient is biased. Subclasses are
    dataclasses, whose fields are their settings; learnt state is not compared.
    """

    name: ClassVar[str]

    @property
    def needs(self) -> Needs:
        """What this baseline needs to know of each rollout."""
        return Needs()

    @property
    def reads_rates(self) -> bool:
        """Whether it starts from known success rates of prompts, ``Prompt.rate``."""
        return False

    def prepare(self, prompts: Sequence[Prompt]) -> None:  # noqa: B027 - a hook, empty by default
        """Announce prompts before training. Optional, often faster."""

    @abstractmethod
    def predict(self, prompts: Sequence[Prompt]) -> Floats:
        """Return the baseline [P] of ``prompts``, known or not; P may be 0. It never changes a later prediction."""

    @abstractmethod
    def update(self, batch: Batch) -> None:
        """Learn from a finished batch. Prompts without a verified rollout are ignored."""

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of all that was learnt, as plain Python and numpy values."""
        return {"baseline": self.name, **copy.deepcopy(self._memory())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a copy of ``state``. Raise ValueError for the state of another baseline."""
        check_source(state, "baseline", self.name)
        self._remember(SavedValues(copy.deepcopy(state), self.name, ["baseline", *self._memory()]))

    def _memory(self) -> dict[str, Any]:
        """Return what was learnt, by name."""
        return {}

    def _remember(self, saved: SavedValues) -> None:  # noqa: B027 - a hook, empty by default
        """Restore what ``_memory`` returned. Raise ValueError for anything else."""
