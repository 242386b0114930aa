"""Results as JSON, which has no word for a number that is not finite."""

import json
import math
from dataclasses import fields, is_dataclass
from typing import Any


def json_text(value: Any, indent: int | None = None) -> str:
    """Return ``value`` as JSON. Dataclasses are objects, and numbers that are not finite are null.

    >>> json_text({"variance": float("inf"), "counts": (3, 3)})
    '{"variance": null, "counts": [3, 3]}'
    """
    return json.dumps(plain(value), indent=indent, allow_nan=False)


def plain(value: Any) -> Any:
    """Return dataclasses and named tuples as dictionaries, tuples as lists, and numbers that are not finite as None.

    >>> from apportion.replay.intervals import Spanned
    >>> plain((Spanned(0.5, 0.25, float("nan")), "text"))
    [{'value': 0.5, 'low': 0.25, 'high': None}, 'text']
    """
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: plain(each) for name, each in zip(value._fields, value, strict=True)}
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
