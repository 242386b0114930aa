"""Whether values that were read from a file have the types that a dataclass declares."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from apportion.untrusted import shown


def fits(value: Any, kind: Any) -> bool:
    """Return whether ``value`` is of the annotated type ``kind``, with all that it contains.

    >>> fits((1, 2), tuple[int, ...]), fits([1], list[str]), fits(None, int | None), fits(True, int)
    (True, False, True, False)
    """
    return _test_of(kind)(value)


@cache
def _test_of(kind: Any) -> Callable[[Any], bool]:
    """Return a function that tests values for the type ``kind``. It is made once for many lines of a file."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: True
    if origin in (Union, UnionType):
        either = [_test_of(part) for part in parts]
        return lambda value: any(test(value) for test in either)
    if origin is Literal:
        return lambda value: value in parts
    if origin is tuple:
        each = [_test_of(part) for part in parts if part is not ...]
        if parts[-1] is ...:
            return lambda value: isinstance(value, tuple) and all(map(each[0], value))
        return lambda value: (
            isinstance(value, tuple)
            and len(value) == len(each)
            and all(test(part) for test, part in zip(each, value, strict=True))
        )
    if origin is list:
        part = _test_of(parts[0])
        return lambda value: isinstance(value, list) and all(map(part, value))
    if origin in (dict, Mapping):
        key, held = map(_test_of, parts)
        return lambda value: isinstance(value, dict) and all(map(key, value)) and all(map(held, value.values()))
    if origin is np.ndarray:
        dtype = get_args(parts[1])[0]
        return lambda value: isinstance(value, np.ndarray) and value.dtype == dtype
    if kind in (None, NoneType):
        return lambda value: value is None
    if not isinstance(kind, type):
        raise TypeError(f"the type of a record must be one that can be checked, got {kind}; extend fits")
    if kind is float:
        return lambda value: type(value) is float or type(value) is int
    return lambda value: type(value) is kind


def check_fields(kind: Any, values: Any) -> None:
    """Raise ValueError unless ``values`` has the fields of the dataclass ``kind`` by name, with the declared types."""
    types = _declared(kind)
    if not isinstance(values, dict) or values.keys() != types.keys():
        raise ValueError(f"a {kind.__name__} must have the fields {', '.join(types)}, got others")
    for field, value in values.items():
        if not _test_of(types[field])(value):
            raise ValueError(f"{field} of a {kind.__name__} must be of type {types[field]}, got {shown(value)}")


@cache
def _declared(kind: type[Any]) -> dict[str, Any]:
    """Return the types of the fields by name."""
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind) if each.init}
