"""The predictor protocol: beliefs about prompts, learned from finished batches; and checks of settings."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from apportion.predictors.saved import Learner
from apportion.types import Batch, Belief, Floats, Needs, Prompt


class Predictor(Learner, ABC):
    """Predicts how likely the policy is to answer each prompt correctly, from earlier batches.

    A subclass is a dataclass as ``Learner`` says. It implements ``predict`` and ``update``.
    """

    kind: ClassVar[str] = "predictor"

    @property
    def needs(self) -> Needs:
        """What this predictor needs to know of each rollout: by default whether it is correct."""
        return Needs(binary=True)

    @property
    def reads_texts(self) -> bool:
        """Whether ``prepare`` reads the texts of the prompts, for example to embed them."""
        return type(self).prepare is not Predictor.prepare

    @property
    def reads_rates(self) -> bool:
        """Whether known success rates of prompts, ``Prompt.rate``, are a prior."""
        return False

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Announce ``prompts`` before training, for example to embed them all at once. Optional, and often faster."""

    @abstractmethod
    def predict(self, prompts: Sequence[Prompt]) -> Belief:
        """Return the belief [P] about ``prompts``, seen before or not; P may be 0. Later predictions do not change."""

    def expected_rewards(self, prompts: Sequence[Prompt]) -> Floats:
        """Return the expected reward of one rollout, [P]: the mean of the belief, if rewards are 0 and 1."""
        return self.predict(prompts).mean

    @abstractmethod
    def update(self, batch: Batch) -> None:
        """Learn from a finished batch. A prompt without a verified rollout is ignored."""

    def _settings(self) -> dict[str, Any]:
        settings = super()._settings()
        if "embedder" in settings:
            embedder = settings["embedder"]  # by its model without the folder, or else by its function or class
            model = getattr(embedder, "model", None)
            name = getattr(embedder, "__qualname__", type(embedder).__qualname__)
            settings["embedder"] = Path(model).name if isinstance(model, str) else str(name)
        return settings


def checked_rates(rates: Mapping[str, float] | None) -> Mapping[str, float]:
    """Return known success ``rates`` by prompt id, {} for None. Raise ValueError for one outside [0, 1]."""
    for id, rate in (rates := rates or {}).items():
        if not 0 <= rate <= 1:
            raise ValueError(f"rates must be between 0 and 1, got {rate} for prompt {id!r}; divide by the trials")
    return rates


def check_discount(discount: float, called: str = "discount") -> None:
    """Raise ValueError unless ``discount`` is between 0 and 1. The error calls it ``called``."""
    if not 0 <= discount <= 1:
        raise ValueError(f"{called} must be between 0 and 1, got {discount}; 1 forgets nothing")
