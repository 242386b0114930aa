"""Values as JSON and tensors, and back: nothing in either form can name code to run.

JSON has text, numbers, true, false, null and lists. Everything else is an object with one key, which says what it is:
a ``dict``, a ``tuple``, ``bytes`` in hexadecimal, the number of a ``tensor`` or of a numpy ``array`` or ``scalar``, or
a ``record``: one of the dataclasses that the reader names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

DEEPEST = 64
"""The most levels of nesting that are read or written."""

Records = Sequence[type[Any]]


def encode(value: Any, tensors: list[Tensor], depth: int = 0) -> Any:
    """Return ``value`` as JSON. Its tensors and arrays are appended to ``tensors``, as copies on the CPU.

    Raises TypeError for a value of any other kind, and ValueError for one that is nested too deeply.

    >>> encode({"a": (1, b"x")}, [])
    {'dict': [['a', {'tuple': [1, {'bytes': '78'}]}]]}
    """
    if depth > DEEPEST:
        raise ValueError(f"a state must have at most {DEEPEST} levels, got more; does a value contain itself?")

    def inner(part: Any) -> Any:
        return encode(part, tensors, depth + 1)

    if isinstance(value, np.generic):
        tensors.append(torch.tensor(value))
        return {"scalar": len(tensors) - 1}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [inner(part) for part in value]
    if isinstance(value, tuple):
        return {"tuple": [inner(part) for part in value]}
    if isinstance(value, Mapping):
        return {"dict": [[inner(key), inner(part)] for key, part in value.items()]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, Tensor):
        tensors.append(value.detach().cpu().clone(memory_format=torch.contiguous_format))
        return {"tensor": len(tensors) - 1}
    if isinstance(value, np.ndarray):
        tensors.append(torch.tensor(value))  # raises TypeError for text and objects
        return {"array": len(tensors) - 1}
    if is_dataclass(value) and not isinstance(value, type):
        own = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
        return {"record": [type(value).__name__, inner(own)]}
    raise TypeError(
        f"a state must be plain data, tensors and arrays, got a {type(value).__name__}; leave it out of the state, or "
        "make it plain"
    )


def decode(value: Any, tensors: dict[int, Tensor], records: Records = (), depth: int = 0) -> Any:
    """Return what ``encode`` was given. Raise ValueError for JSON that it cannot have written.

    ``tensors`` are taken out by number, so that each is used once. A record must be of one of ``records``, and its
    fields must have the types that its class declares.
    """
    if depth > DEEPEST:
        raise ValueError(f"it must have at most {DEEPEST} levels, got more")

    def inner(part: Any) -> Any:
        return decode(part, tensors, records, depth + 1)

    if isinstance(value, list):
        return [inner(part) for part in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise ValueError(f"an object must have one key, got {len(value)}")
    ((kind, content),) = value.items()
    if kind == "tuple" and isinstance(content, list):
        return tuple(inner(part) for part in content)
    if kind == "dict" and isinstance(content, list):
        return _dictionary([(inner(key), inner(part)) for key, part in map(_pair, content)])
    if kind == "bytes" and isinstance(content, str):
        return bytes.fromhex(content)
    if kind in ("tensor", "array", "scalar") and type(content) is int and content in tensors:
        tensor = tensors.pop(content)
        if kind == "tensor":
            return tensor
        array = _array(tensor)
        if kind == "scalar" and array.ndim:
            raise ValueError(f"a scalar must be one number, got {array.size}")
        return array if kind == "array" else array[()]
    if kind == "record":
        name, own = _pair(content)
        return _record(name, inner(own), {record.__name__: record for record in records})
    raise ValueError(f"an object must say what it is, got {kind!r:.40}")


def fits(value: Any, kind: Any) -> bool:
    """Return whether ``value`` is of the annotated type ``kind``, with all that it contains.

    >>> fits((1, 2), tuple[int, ...]), fits([1], list[str]), fits(None, int | None), fits(True, int)
    (True, False, True, False)
    """
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, UnionType):
        return any(fits(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        wanted = parts[:1] * len(value) if parts[-1] is ... else parts
        return len(value) == len(wanted) and all(map(fits, value, wanted))
    if origin is list:
        return isinstance(value, list) and all(fits(part, parts[0]) for part in value)
    if origin in (dict, Mapping):
        return isinstance(value, dict) and all(fits(k, parts[0]) and fits(v, parts[1]) for k, v in value.items())
    if origin is np.ndarray:
        return isinstance(value, np.ndarray) and value.dtype == get_args(parts[1])[0]
    if kind in (None, NoneType):
        return value is None
    if not isinstance(kind, type):
        raise TypeError(f"the type of a record must be one that can be checked, got {kind}; extend fits")
    return type(value) is kind or (kind is float and type(value) is int)


def _array(tensor: Tensor) -> NDArray[Any]:
    try:
        return tensor.numpy()
    except TypeError as error:
        raise ValueError(f"an array cannot be of {tensor.dtype}") from error


def _pair(content: Any) -> tuple[Any, Any]:
    if not isinstance(content, list) or len(content) != 2:
        raise ValueError("a dict or a record must be made of pairs")
    return content[0], content[1]


def _dictionary(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    try:
        found = dict(pairs)
    except TypeError as error:
        raise ValueError(f"a key must be hashable: {error}") from error
    if len(found) < len(pairs):
        raise ValueError("a dict must have each key once")
    return found


def _record(name: Any, own: Any, known: Mapping[str, type[Any]]) -> Any:
    kind = known.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"a record must be one of {', '.join(known) or 'none'}, got {name!r:.40}")
    hints = get_type_hints(kind)
    types = {each.name: hints[each.name] for each in fields(kind) if each.init}
    if not isinstance(own, dict) or own.keys() != types.keys():
        raise ValueError(f"a {name} must have the fields {', '.join(types)}")
    for field, value in own.items():
        if not fits(value, types[field]):
            raise ValueError(f"{field} of a {name} must be {types[field]}, got {value!r:.40}")
    return kind(**own)
