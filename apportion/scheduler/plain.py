"""Values as JSON, which ``torch.load(weights_only=True)`` takes too, and back: nothing in it can name code to run.

JSON has text, numbers, true, false, null and lists. Everything else is an object with one key, which says what it is: a
``dict``, a ``tuple``, ``bytes`` in hexadecimal, a ``tensor``, a numpy ``array`` or ``scalar``, or a ``record``: one of
the dataclasses that the reader names.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

Records = Sequence[type[Any]]


def encode(value: Any, kept: list[Any] | None = None) -> Any:
    """Return ``value`` as JSON. Its tensors and arrays are appended to ``kept`` and replaced by their index.

    Without ``kept`` arrays are in the JSON, and tensors are refused. Raises TypeError for a value of any other kind.

    >>> encode({"a": (1, b"x")}), encode(np.zeros(1))
    ({'dict': [['a', {'tuple': [1, {'bytes': '78'}]}]]}, {'array': ['<f8', [1], 'AAAAAAAAAAA=']})
    """
    array = isinstance(value, np.ndarray | np.generic)
    if array or (kept is not None and hasattr(value, "detach")):
        kind = "tensor" if not array else "array" if isinstance(value, np.ndarray) else "scalar"
        if kept is None:
            return {kind: [value.dtype.str, list(value.shape), base64.b64encode(value.tobytes()).decode()]}
        kept.append(value)
        return {kind: len(kept) - 1}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [encode(part, kept) for part in value]
    if isinstance(value, tuple):
        return {"tuple": encode(list(value), kept)}
    if isinstance(value, Mapping):
        return {"dict": [[encode(key, kept), encode(part, kept)] for key, part in value.items()]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if is_dataclass(value) and not isinstance(value, type):
        own = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
        return {"record": [type(value).__name__, encode(own, kept)]}
    raise TypeError(
        f"a state must be plain data, tensors and arrays, got a {type(value).__name__}; leave it out of the state, or "
        "make it plain"
    )


def decode(value: Any, kept: dict[int, Any] | None = None, records: Records = ()) -> Any:
    """Return what ``encode`` was given. A record must be of one of ``records``; fields with a default may be newer.

    Tensors are taken out of ``kept`` by number, so that each is used once. Raises ValueError, TypeError, KeyError,
    AttributeError or RecursionError for JSON that ``encode`` cannot have written.

    >>> [decode(encode(each)).tolist() for each in (np.eye(2), np.float32(0.5))]
    [[[1.0, 0.0], [0.0, 1.0]], 0.5]
    """

    def inner(part: Any) -> Any:
        return decode(part, kept, records)

    if isinstance(value, list):
        return [inner(part) for part in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tuple":
        return tuple(inner(part) for part in content)
    if kind == "dict":
        return {inner(key): inner(part) for key, part in content}
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "tensor":
        return (kept or {}).pop(content)
    if kind in ("array", "scalar"):
        if kept is None:
            dtype, shape, data = content
            array = np.frombuffer(base64.b64decode(data), dtype).reshape(shape).copy()
        else:
            array = np.asarray(kept.pop(content))
        return array if kind == "array" else array[()]
    if kind == "record":
        name, own = content
        if name not in (known := {record.__name__: record for record in records}):
            raise ValueError(f"a record must be one of {', '.join(known) or 'none'}, got {name!r:.40}")
        return known[name](**inner(own))
    raise ValueError(f"an object must say what it is, got {kind!r:.40}")


def restored(state: Mapping[str, Any]) -> Any:
    """Return the state of a learner from ``encode``. States of 0.3.0 were not encoded, and are returned unchanged."""
    return decode(state) if state.keys() == {"dict"} else state
