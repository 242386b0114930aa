"""Whether values that were read from a file have the types that a dataclass declares."""

from collections.abc import Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from apportion.untrusted import shown


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


def check_fields(kind: type[Any], values: Any) -> None:
    """Raise ValueError unless ``values`` has the fields of the dataclass ``kind`` by name, with the declared types."""
    hints = get_type_hints(kind)
    types = {each.name: hints[each.name] for each in fields(kind) if each.init}
    if not isinstance(values, dict) or values.keys() != types.keys():
        raise ValueError(f"a {kind.__name__} must have the fields {', '.join(types)}, got others")
    for field, value in values.items():
        if not fits(value, types[field]):
            raise ValueError(f"{field} of a {kind.__name__} must be of type {types[field]}, got {shown(value)}")
