"""The predictor protocol: beliefs about prompts, learned from finished batches; and checks of settings and states."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar

from apportion.predictors.saved import SavedValues
from apportion.types import Batch, Belief, Floats, Needs, Prompt
from apportion.untrusted import shown


class Predictor(ABC):
    """Predicts how likely the policy is to answer each prompt correctly, from earlier batches.

    A subclass is a dataclass. Its settings are init fields; what it has learned is in fields that are neither init nor
    compared. It implements ``predict`` and ``update``. If it learns, it also implements ``_memory`` and ``_restore``.
    """

    name: ClassVar[str]

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

    def prepare(self, prompts: Sequence[Prompt]) -> None:  # noqa: B027 - most predictors have nothing to compute
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

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the settings and of all that was learned, as plain Python and numpy values."""
        return {"predictor": self.name, "settings": self._settings(), **copy.deepcopy(self._memory())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a copy of what ``state_dict`` returned. Raise ValueError for another predictor or other settings."""
        check_source(state, "predictor", self.name)
        saved = SavedValues(copy.deepcopy(state), self.name, ["predictor", "settings", *self._memory()])
        check_settings(saved.state("settings"), self._settings(), self.name)
        self._restore(saved)

    def _settings(self) -> dict[str, Any]:
        """Return the settings by name that a saved state must share."""
        settings = {field.name: getattr(self, field.name) for field in fields(self) if field.init}  # type: ignore[arg-type]
        if "embedder" in settings:
            embedder = settings["embedder"]  # by its model without the folder, or else by its function or class
            model = getattr(embedder, "model", None)
            name = getattr(embedder, "__qualname__", type(embedder).__qualname__)
            settings["embedder"] = model.rstrip("/").rsplit("/", 1)[-1] if isinstance(model, str) else str(name)
        return settings

    def _memory(self) -> dict[str, Any]:
        """Return what was learned, by name."""
        return {}

    def _restore(self, saved: SavedValues) -> None:  # noqa: B027 - a predictor that does not learn restores nothing
        """Replace what was learned by what ``_memory`` returned. Raise ValueError for anything else."""


class OtherSettingsError(ValueError):
    """A saved state is whole, but of another run: of another part, or of the same one with other settings."""


def check_source(state: Mapping[str, Any], kind: str, name: str) -> None:
    """Raise ValueError unless ``state[kind]`` is ``name``; ``kind`` is for example "predictor".

    It is an OtherSettingsError if the state is of another part.
    """
    found = state.get(kind) if isinstance(state, Mapping) else None
    if type(found) is not str or found != name:
        raise (OtherSettingsError if type(found) is str else ValueError)(
            f"the state must come from the {kind} {name!r}, got {shown(found)}; "
            f"configure the {kind} of the checkpoint, or start from an empty state"
        )


def check_settings(saved: Mapping[str, Any], settings: Mapping[str, Any], name: str) -> None:
    """Raise OtherSettingsError unless ``name`` was saved under its present ``settings``. It names the first difference.

    >>> check_settings({"window": 8}, {"window": 1024}, name="moving_average")
    Traceback (most recent call last):
    apportion.predictors.base.OtherSettingsError: window must be 8 to load this state of 'moving_average', got 1024; ...
    """
    for key in sorted({*saved, *settings}):
        if not _equal(saved.get(key), settings.get(key)):
            raise OtherSettingsError(
                f"{key} must be {shown(saved.get(key))} to load this state of {name!r}, got {settings.get(key)!r}; "
                f"use the saved {key}, or start from an empty state"
            )


def _equal(saved: Any, own: Any) -> bool:
    """Return whether two settings are equal. A setting is a number, a text, None, or a tuple of these."""
    return isinstance(saved, int | float | str | tuple | None) and bool(saved == own)


def check_positive(predictor: Predictor, **settings: float) -> None:
    """Raise ValueError for a setting of ``predictor`` that is not a finite number above 0."""
    for key, value in settings.items():
        if not 0 < value < float("inf"):
            raise ValueError(
                f"{key} must be finite and above 0 for {predictor.name!r}, got {value}; leave it out for the default"
            )


def check_clip(predictor: Predictor, clip: float) -> None:
    """Raise ValueError unless ``clip`` is strictly between 0 and 0.5."""
    if not 0 < clip < 0.5:
        raise ValueError(
            f"clip must be above 0 and below 0.5 for {predictor.name!r}, got {clip}; leave it out for the default"
        )


def check_discount(discount: float, called: str = "discount") -> None:
    """Raise ValueError unless ``discount`` is between 0 and 1. The error calls it ``called``."""
    if not 0 <= discount <= 1:
        raise ValueError(f"{called} must be between 0 and 1, got {discount}; 1 forgets nothing")


def check_window(predictor: Predictor, window: int) -> None:
    """Raise ValueError unless ``window`` is at least 1."""
    if window < 1:
        raise ValueError(
            f"window must be at least 1 observation for {predictor.name!r}, got {window}; 1024 is the paper's"
        )
