"""What is learned, saved and restored: values are checked as they are read, so that no damaged state is restored."""

import copy
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from apportion.checks import LARGEST_INTEGER
from apportion.untrusted import shown

INFINITY = float("inf")
LARGEST = float(np.finfo(np.float64).max)
Bounds = tuple[float, ...]


@dataclass(frozen=True)
class SavedValues:
    """The ``values`` of a saved state of ``owner``, by name. Each method returns one value, or raises ValueError.

    ``keys`` are the names that it must have, no more and no fewer.

    >>> saved = SavedValues({"updates": 3, "rate": float("nan")}, "counts", keys=["updates", "rate"])
    >>> saved.count("updates")
    3
    >>> saved.number("rate")
    Traceback (most recent call last):
    ValueError: rate must be a finite number in a saved state of 'counts', got nan; load a state that is unchanged
    """

    values: Any
    owner: str
    keys: Collection[str]

    def __post_init__(self) -> None:
        found = set(self.values) if isinstance(self.values, Mapping) else None
        if found != set(self.keys):
            got = shown(self.values) if found is None else ", ".join(sorted(map(str, found))) or "nothing"
            raise ValueError(
                f"a saved state of {self.owner!r} must have {', '.join(sorted(self.keys)) or 'nothing'}, got {got}; "
                "load a state that is unchanged"
            )

    def count(self, key: str) -> int:
        """Return an integer that is at least 0, and fits in 64 bits."""
        value = self.values[key]
        if not _is_count(value):
            raise self.refusal(key, "a number of at least 0 without decimals")
        return value

    def counts(self, key: str) -> list[int]:
        """Return a list of integers, each checked as by ``count``."""
        value = self.values[key]
        if not isinstance(value, list) or not all(map(_is_count, value)):
            raise self.refusal(key, "a list of numbers of at least 0 without decimals")
        return list(value)

    def number(self, key: str, low: float = -INFINITY) -> float:
        """Return a finite number that is at least ``low``."""
        wanted = "a finite number" if low == -INFINITY else f"a finite number of at least {low:g}"
        return float(_rows([[self.values[key]]], (low,), INFINITY, self.refusal(key, wanted))[0, 0])

    def array(
        self,
        key: str,
        shape: tuple[int | None, ...],
        *,
        low: ArrayLike = -INFINITY,
        high: ArrayLike = INFINITY,
        dtype: DTypeLike = np.float64,
    ) -> NDArray[Any]:
        """Return a finite array of this shape and type from ``low`` to ``high``. A size of None may be any.

        The bounds may differ by column.
        """
        value = self.values[key]
        fits = isinstance(value, np.ndarray) and value.dtype == dtype and value.ndim == len(shape)
        if not fits or any(size not in (None, own) for size, own in zip(shape, value.shape, strict=True)):
            sizes = ", ".join("any" if size is None else str(size) for size in shape)
            raise self.refusal(key, f"an array [{sizes}] of {np.dtype(dtype)}")
        if not (np.isfinite(value) & (value >= low) & (value <= high)).all():
            raise self.refusal(key, "finite and within its bounds")
        return value

    def by_prompt(self, key: str, low: Bounds, high: Bounds | float = INFINITY) -> dict[str, NDArray[np.float64]]:
        """Return lists of finite numbers by prompt id.

        Entry i of a list lies between entry i of ``low`` and of ``high``.
        """
        by_id = self.state(key)
        wanted = f"{len(low)} finite numbers by prompt id, at least {', '.join(f'{each:g}' for each in low)}"
        return dict(zip(by_id, _rows(list(by_id.values()), low, high, self.refusal(key, wanted)), strict=True))

    def row(self, key: str, low: Bounds, high: Bounds | float = INFINITY) -> list[float]:
        """Return a list of finite numbers. Entry i lies between entry i of ``low`` and of ``high``."""
        refusal = self.refusal(key, f"{len(low)} finite numbers")
        return _rows([self.values[key]], low, high, refusal)[0].tolist()

    def texts(self, key: str) -> list[str]:
        """Return a list of texts."""
        value = self.values[key]
        if not isinstance(value, list) or not all(type(text) is str for text in value):
            raise self.refusal(key, "a list of texts")
        return value

    def state(self, key: str) -> dict[str, Any]:
        """Return a saved state that is nested in this one."""
        value = self.values[key]
        if not isinstance(value, dict) or not all(type(name) is str for name in value):
            raise self.refusal(key, "values by name")
        return value

    def refusal(self, key: str, wanted: str) -> ValueError:
        """Return the error for a value that is not as ``wanted``."""
        return ValueError(
            f"{key} must be {wanted} in a saved state of {self.owner!r}, got {shown(self.values[key])}; "
            "load a state that is unchanged"
        )


class OtherSettingsError(ValueError):
    """A saved state that is intact, but belongs to another part or to other settings."""


class Learner:
    """A part of a run that learns from batches, and whose state is saved and restored with a checkpoint.

    A subclass is a dataclass. Its init fields are its settings; what it has learned is in other attributes. If it
    learns, it implements ``_memory`` and ``_restore``.
    """

    kind: ClassVar[str]
    """The kind of part, such as predictor: the key under which a state keeps its name."""
    name: ClassVar[str]

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the settings and of all that was learned, as plain Python and numpy values."""
        return copy.deepcopy(self._state())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a copy of what ``state_dict`` returned. Raise ValueError for another part or a damaged state.

        It is an OtherSettingsError if the state is whole, but of another part or of other settings.
        """
        self._load(copy.deepcopy(state))

    def _state(self) -> dict[str, Any]:
        return {self.kind: self.name, **self._saved_settings(), **self._memory()}

    def _load(self, state: Mapping[str, Any]) -> None:
        found = state.get(self.kind) if isinstance(state, Mapping) else None
        if type(found) is not str or found != self.name:
            raise (OtherSettingsError if type(found) is str else ValueError)(
                f"the state must come from the {self.kind} {self.name!r}, got {shown(found)}; "
                f"configure the {self.kind} of the checkpoint, or start from an empty state"
            )
        saved = SavedValues(self._completed(dict(state)), self.name, list(self._state()))
        if settings := self._saved_settings():
            self._check_settings(saved.state("settings"), settings["settings"])
        self._restore(saved)

    def _check_settings(self, saved: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        for key in sorted({*saved, *settings}):
            value = saved.get(key)  # a setting is a number, a text, None, or a tuple of these
            if not (isinstance(value, int | float | str | tuple | None) and bool(value == settings.get(key))):
                raise OtherSettingsError(
                    f"{key} must be {shown(value)} to load this state of {self.name!r}, got {settings.get(key)!r}; "
                    f"use the saved {key}, or start from an empty state"
                )

    def _saved_settings(self) -> dict[str, Any]:
        return {"settings": self._settings()}

    def _settings(self) -> dict[str, Any]:
        """Return the settings by name that a saved state must share."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.init}  # type: ignore[arg-type]

    def _memory(self) -> dict[str, Any]:
        """Return what was learned, by name."""
        return {}

    def _completed(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a saved ``state`` of the previous minor version in today's form."""
        return state

    def _restore(self, saved: SavedValues) -> None:
        """Replace what was learned by what ``_memory`` returned. Raise ValueError for anything else."""


class HasState(Protocol):
    """Anything that saves and restores what it has learned."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Restore a state. Raise ValueError for anything else."""


@contextmanager
def undone_if_refused(*parts: HasState) -> Iterator[None]:
    """Restore all of ``parts`` to their present states if the block raises ValueError."""
    before = [(part, part.state_dict()) for part in parts]
    try:
        yield
    except ValueError:
        for part, state in before:
            part.load_state_dict(state)
        raise


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LARGEST_INTEGER


def _rows(rows: list[Any], low: Bounds, high: Bounds | float, refusal: ValueError) -> NDArray[np.float64]:
    """Return ``rows`` as an array [P, columns]. Raise ``refusal`` for anything but numbers within bounds."""
    try:
        found = np.array(rows or np.zeros((0, len(low))))  # no dtype: with one, numpy would read numbers from text
    except ValueError as error:
        raise refusal from error
    shaped = found.dtype.kind in "fi" and found.shape == (len(rows), len(low))
    if not shaped or not (np.isfinite(found) & (found >= low) & (found <= high)).all():
        raise refusal
    return found.astype(np.float64)
