"""Whether a saved state may be loaded: it must come from the same method, under the same settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def check_source(state: Mapping[str, Any], kind: str, name: str) -> None:
    """Raises ValueError unless ``state`` says under ``kind``, such as "predictor", that it was saved by ``name``."""
    if state.get(kind) != name:
        raise ValueError(
            f"the state must come from the {kind} {name!r}, got {state.get(kind)!r}; "
            f"configure the {kind} of the checkpoint, or start from an empty state"
        )


def check_settings(saved: Mapping[str, Any], settings: Mapping[str, Any], name: str) -> None:
    """Raises ValueError unless the ``saved`` settings of ``name`` are its present ``settings``; names the first apart.

    >>> check_settings({"window": 8}, {"window": 1024}, name="moving_average")
    Traceback (most recent call last):
    ValueError: window must be 8 to load this state of 'moving_average', got 1024; use the saved window, or ...
    """
    for key in sorted({*saved, *settings}):
        if saved.get(key) != settings.get(key):
            raise ValueError(
                f"{key} must be {saved.get(key)!r} to load this state of {name!r}, got {settings.get(key)!r}; "
                f"use the saved {key}, or start from an empty state"
            )
