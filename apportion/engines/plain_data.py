"""Values as JSON and tensors, and back: nothing in either form can name code to run.

JSON has text, numbers, true, false, null and lists. Everything else is an object with one key, which says what it is:
a ``dict``, a ``tuple``, ``bytes`` in hexadecimal, the number of a ``tensor`` or of a numpy ``array`` or ``scalar``, or
a ``record``: one of the dataclasses that the reader names. A ``part`` is a value that is kept elsewhere, by its name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apportion.runs.declared_types import check_fields
from apportion.untrusted import MAX_DEPTH

Records = Sequence[type[Any]]
NameOf = Callable[[Any], str | None]
"""Returns the name of a value that is kept elsewhere, and None for one that is not."""
PartNamed = Callable[[str], Any]
"""Returns a value that is kept elsewhere by its name, or raises ValueError."""


def encode(value: Any, tensors: list[Tensor], name_of: NameOf | None = None, depth: int = 0) -> Any:
    """Return ``value`` as JSON. Its tensors and arrays are appended to ``tensors``, as copies on the CPU.

    A dataclass with a name, by ``name_of``, is left out but for that name.

    Raises TypeError for a value of any other kind, and ValueError for one that is nested too deeply.

    >>> encode({"a": (1, b"x")}, [])
    {'dict': [['a', {'tuple': [1, {'bytes': '78'}]}]]}
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"a state must have at most {MAX_DEPTH} levels, got more; does a value contain itself?")

    def inner(part: Any) -> Any:
        return encode(part, tensors, name_of, depth + 1)

    def kept(kind: str, tensor: Tensor) -> dict[str, int]:
        tensors.append(tensor)
        return {kind: len(tensors) - 1}

    if isinstance(value, np.generic):
        return kept("scalar", torch.tensor(value))
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
        return kept("tensor", value.detach().cpu().clone(memory_format=torch.contiguous_format))
    if isinstance(value, np.ndarray):
        return kept("array", torch.tensor(value).contiguous())  # raises TypeError for text and objects
    if is_dataclass(value) and not isinstance(value, type):
        if name_of is not None and (name := name_of(value)) is not None:
            return {"part": name}
        own = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
        return {"record": [type(value).__name__, inner(own)]}
    raise TypeError(
        f"a state must be plain data, tensors and arrays, got a {type(value).__name__}; leave it out of the state, or "
        "make it plain"
    )


def decode(
    value: Any,
    tensors: dict[int, Tensor],
    records: Records = (),
    part_named: PartNamed | None = None,
    depth: int = 0,
) -> Any:
    """Return what ``encode`` was given. Raise ValueError for JSON that it cannot have written.

    ``tensors`` are taken out by number, so that each is used once. A record must be of one of ``records``, and its
    fields must have the types that its class declares. Without ``part_named`` it must have no parts.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"it must have at most {MAX_DEPTH} levels, got more")

    def inner(part: Any) -> Any:
        return decode(part, tensors, records, part_named, depth + 1)

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
    if kind == "part" and isinstance(content, str) and part_named is not None:
        return part_named(content)
    raise ValueError(f"an object must say what it is, got {kind!r:.40}")


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
    if isinstance(own, dict):  # a field with a default may be newer than the file
        own = _defaults(kind) | own
    check_fields(kind, own)
    return kind(**own)


def _defaults(kind: type[Any]) -> dict[str, Any]:
    """Return the defaults of the fields that have one, by name."""
    found = {}
    for each in fields(kind):
        if each.init and each.default_factory is not MISSING:
            found[each.name] = each.default_factory()
        elif each.init and each.default is not MISSING:
            found[each.name] = each.default
    return found
