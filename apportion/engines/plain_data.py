"""Values as JSON and tensors, and back: nothing in either form can name code to run.

JSON has text, numbers, true, false, null and lists. Everything else is an object with one key, which says what it is:
a ``dict``, a ``tuple``, ``bytes`` in hexadecimal, the number of a ``tensor`` or of a numpy ``array`` or ``scalar``, or
a ``record``: one of the dataclasses that the reader names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

Records = Sequence[type[Any]]


def encode(value: Any, tensors: list[Tensor]) -> Any:
    """Return ``value`` as JSON. Its tensors and arrays are appended to ``tensors``, as copies on the CPU.

    Raises TypeError for a value of any other kind.

    >>> encode({"a": (1, b"x")}, [])
    {'dict': [['a', {'tuple': [1, {'bytes': '78'}]}]]}
    """

    def kept(kind: str, tensor: Tensor) -> dict[str, int]:
        tensors.append(tensor)
        return {kind: len(tensors) - 1}

    if isinstance(value, np.generic):
        return kept("scalar", torch.tensor(np.asarray(value)))  # torch takes no uint64 itself
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [encode(part, tensors) for part in value]
    if isinstance(value, tuple):
        return {"tuple": encode(list(value), tensors)}
    if isinstance(value, Mapping):
        return {"dict": [[encode(key, tensors), encode(part, tensors)] for key, part in value.items()]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, Tensor):
        return kept("tensor", value.detach().cpu().clone(memory_format=torch.contiguous_format))
    if isinstance(value, np.ndarray):
        return kept("array", torch.tensor(value).contiguous())  # raises TypeError for text and objects
    if is_dataclass(value) and not isinstance(value, type):
        own = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
        return {"record": [type(value).__name__, encode(own, tensors)]}
    raise TypeError(
        f"a state must be plain data, tensors and arrays, got a {type(value).__name__}; leave it out of the state, or "
        "make it plain"
    )


def decode(value: Any, tensors: dict[int, Tensor], records: Records = ()) -> Any:
    """Return what ``encode`` was given.

    Raises ValueError, TypeError, KeyError or RecursionError for JSON that it cannot have written. ``tensors`` are taken
    out by number, so that each is used once. A record must be of one of ``records``. Fields with a default may be newer
    than the file.
    """

    def inner(part: Any) -> Any:
        return decode(part, tensors, records)

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
        return tensors.pop(content)
    if kind == "array":
        return tensors.pop(content).numpy()
    if kind == "scalar":
        return tensors.pop(content).numpy()[()]
    if kind == "record":
        name, own = content
        if name not in (known := {record.__name__: record for record in records}):
            raise ValueError(f"a record must be one of {', '.join(known) or 'none'}, got {name!r:.40}")
        return known[name](**inner(own))
    raise ValueError(f"an object must say what it is, got {kind!r:.40}")
