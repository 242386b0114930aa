"""States of learners as values that JSON and ``torch.load(weights_only=True)`` take, and back."""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Return ``value`` with tables in place of arrays and tuples.

    >>> plain((1, np.zeros(1)))
    {'_tuple': [1, {'_array': ['<f8', [1], 'AAAAAAAAAAA=']}]}
    """
    if isinstance(value, np.ndarray):
        return {"_array": [value.dtype.str, list(value.shape), base64.b64encode(value.tobytes()).decode()]}
    if isinstance(value, tuple):
        return {"_tuple": plain(list(value))}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return {key: plain(each) for key, each in value.items()} if isinstance(value, Mapping) else value


def restored(value: Any) -> Any:
    """Return what ``plain`` was given. Raise ValueError or TypeError for a damaged array."""
    match value:
        case {"_array": [kind, shape, content]}:
            return np.frombuffer(base64.b64decode(content), kind).reshape(shape).copy()
        case {"_tuple": own}:
            return tuple(restored(own))
        case list():
            return [restored(each) for each in value]
    return {key: restored(each) for key, each in value.items()} if isinstance(value, dict) else value
