"""Checks of what users pass in: the numbers among a dataclass's settings, single integers, arrays, and texts.

All raise ValueError, also for a wrong type, because the loader of TOML files turns that into a message for the user.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from functools import cache
from math import inf
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apportion.untrusted import shown

LONGEST_WORD = 80
"""Longest unknown word, in characters, for which similar words are searched."""

MOST_SHOWN = 40
"""Number of known words that an error lists beside the likeliest one."""

LARGEST_INTEGER = 2**63 - 1
"""The largest integer that an array of counts holds."""


def check_numbers(settings: Any) -> None:
    """Raise ValueError unless the fields of a dataclass that are annotated as numbers or texts hold these.

    Call it first in ``__post_init__``. It reads the annotations: ``int`` takes integers of Python and numpy that fit in
    64 bits, ``float`` real numbers, ``bool`` True and False, ``str`` texts; None, too, if the annotation says so. True
    is not a number, and 8.0 is not an integer. NaN, inf and ranges are left to the checks that follow. A field of a
    class of ours takes no text, which would be a name, and no class. Fields of other types are skipped.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Example:
    ...     rounds: int | None = None
    ...     def __post_init__(self):
    ...         check_numbers(self)
    >>> Example(), Example(3)
    (Example(rounds=None), Example(rounds=3))
    >>> Example("8")
    Traceback (most recent call last):
    ValueError: rounds must be an integer, got '8'; write a whole number, without quotes or a point
    """
    cls: Any = type(settings)
    for name, kinds in _checked_fields(cls).items():
        value = getattr(settings, name)
        if (value is None and NoneType in kinds) or (isinstance(value, str) and str in kinds):
            continue
        if float in kinds:
            if not isinstance(value, Real) or isinstance(value, bool):
                raise ValueError(f"{name} must be a number, got {shown(value)}; write one such as 0.5, without quotes")
        elif int in kinds:
            check_integer(name, value)
        elif bool in kinds:
            if not isinstance(value, (bool, np.bool_)):
                raise ValueError(f"{name} must be True or False, got {shown(value)}; choose one")
        elif str in kinds:
            raise ValueError(f"{name} must be a text, got {shown(value)}; write it in quotes")
        else:
            check_object(name, value, " or ".join(sorted(kind.__name__ for kind in kinds - {NoneType})))


def check_object(name: str, value: Any, kind: str) -> None:
    """Raise ValueError if ``value`` is a text (a mere name) or a class, in place of an object of ``kind``.

    >>> check_object("allocator", "vip", "Allocator")
    Traceback (most recent call last):
    ValueError: allocator must be an object (Allocator), got 'vip'; make one by calling its class
    """
    if type(value) is str or isinstance(value, type):
        raise ValueError(f"{name} must be an object ({kind}), got {shown(value)}; make one by calling its class")


def make_named(where: str, name: str, registry: Mapping[str, Callable[[], Any]]) -> Any:
    """Return a new object of ``registry`` with its defaults; ``where`` is the setting that names it.

    Raises ValueError for an unknown name.
    """
    if name not in registry:
        raise ValueError(f"{where} must be known, got {shown(name)}; {choices(name, registry)}")
    return registry[name]()


def choices(word: str, words: Iterable[str]) -> str:
    """Return the remedy for an unknown ``word``: the most similar of ``words``, if any is similar, and all of them.

    More than 40 words are left out beside a similar one.

    >>> choices("vpi", ["uniform", "vip"]), choices("x", ["uniform", "vip"])
    ("did you mean 'vip'? There are uniform, vip", 'use one of uniform, vip')
    """
    words = list(words)
    close = get_close_matches(word[:LONGEST_WORD], words, n=1)
    if not close:
        return f"use one of {', '.join(words)}"
    return f"did you mean {close[0]!r}?" + (f" There are {', '.join(words)}" if len(words) <= MOST_SHOWN else "")


def check_integer(name: str, value: Any, least: int | None = None, remedy: str | None = None) -> int:
    """Return ``value`` as an int. Raise ValueError unless it is an integer of at least ``least`` that fits in 64 bits.

    >>> check_integer("budget", np.int32(24), least=0)
    24
    """
    bound = "" if least is None else f" of at least {least}"
    if not isinstance(value, Integral) or isinstance(value, bool) or (least is not None and value < least):
        remedy = remedy or "write a whole number, without quotes or a point"
        raise ValueError(f"{name} must be an integer{bound}, got {shown(value)}; {remedy}")
    if abs(int(value)) > LARGEST_INTEGER:
        raise ValueError(f"{name} must fit in 64 bits, got {shown(value)}; use at most {LARGEST_INTEGER}")
    return int(value)


def check_least(settings: Any, remedy: str = "", **least: float) -> None:
    """Raise ValueError unless these fields of a dataclass are None, or finite and not below their ``least`` value.

    Without a ``remedy`` the default of the field is named.

    >>> from types import SimpleNamespace
    >>> check_least(SimpleNamespace(target=0), "leave it out", target=1)
    Traceback (most recent call last):
    ValueError: target must be at least 1, got 0; leave it out
    """
    for name, low in least.items():
        value = getattr(settings, name)
        if value is not None and not low <= value < inf:
            said = f"{name} must be at least {low}{_of_rule(settings)}, got {shown(value)}"
            raise ValueError(f"{said}; {remedy or _usual(settings, name)}")


def check_positive(settings: Any, *names: str) -> None:
    """Raise ValueError unless these fields of a dataclass are None, or finite and above 0."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not 0 < value < inf:
            said = f"{name} must be finite and above 0{_of_rule(settings)}, got {shown(value)}"
            raise ValueError(f"{said}; {_usual(settings, name)}")


def _of_rule(settings: Any) -> str:
    """Return " for NAME" for a rule of a registry, else ""."""
    name = getattr(type(settings), "name", None)
    return f" for {name}" if isinstance(name, str) else ""


def _usual(settings: Any, name: str) -> str:
    usual = type(settings).__dataclass_fields__[name].default
    return "leave it out for the default" if usual in (None, MISSING) else f"{usual} is usual"


def check_choice(name: str, value: Any, choices: Collection[str], remedy: str = "check the spelling") -> None:
    """Raise ValueError unless ``value`` is one of ``choices``."""
    if value not in tuple(choices):
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {shown(value)}; {remedy}")


def total_of(average: float, number: int) -> int:
    """Return ``average`` times ``number``, rounded down to a whole number but for rounding: 4.35 times 100 is 435.

    >>> total_of(4.35, 100), total_of(4.35, 10)
    (435, 43)
    """
    return int(average * number * (1 + 1e-12))


def number_array(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """Return ``values`` as an array of floats, which may hold NaN. Raise ValueError for masked and other values.

    >>> number_array("gains", np.ma.masked_equal([1, 2], 2))
    Traceback (most recent call last):
    ValueError: gains must not be masked, because a mask would be lost, got 1 masked of 2; leave these entries out
    """
    _refuse_mask(name, values)
    try:
        array = np.asarray(values)
        if array.dtype.kind in "iufbO":
            return array.astype(np.float64, copy=False)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"{name} must be numbers, got {shown(values)}; give a list or an array of numbers")


def integer_array(name: str, values: ArrayLike) -> NDArray[np.int64]:
    """Return ``values`` as an array of integers. Raise ValueError for fractions, NaN, masked and other values.

    >>> integer_array("trials", [4, 8.0]).tolist()
    [4, 8]
    >>> integer_array("trials", [2.5])
    Traceback (most recent call last):
    ValueError: trials must be integers, got 2.5; count rollouts
    """
    if isinstance(values, np.ndarray) and values.dtype == np.int64 and not isinstance(values, np.ma.MaskedArray):
        return values
    numbers = number_array(name, values)
    bad = ~((numbers == np.floor(numbers)) & (np.abs(numbers) < float(LARGEST_INTEGER)))
    if bad.any():
        raise ValueError(f"{name} must be integers, got {numbers[bad][0]:g}; count rollouts")
    return np.asarray(values).astype(np.int64)


def encodable(text: str) -> str:
    """Return ``text`` with "?" for lone surrogates, which JSON can carry but files and requests cannot.

    >>> encodable("a" + chr(0xD800))
    'a?'
    """
    return text if text.isascii() else text.encode(errors="replace").decode()


def _refuse_mask(name: str, values: Any) -> None:
    if isinstance(values, np.ma.MaskedArray):
        raise ValueError(
            f"{name} must not be masked, because a mask would be lost, got {int(np.ma.getmaskarray(values).sum())} "
            f"masked of {values.size}; leave these entries out"
        )


@cache
def _checked_fields(cls: type) -> dict[str, set[Any]]:
    """Return the types of each init field of ``cls`` that is a number, a flag, a text or one of our own classes.

    The type of a literal is str.
    """
    hints, found = get_type_hints(cls), {}
    for field in (field for field in fields(cls) if field.init):
        hint = hints[field.name]
        kinds = set(get_args(hint)) if get_origin(hint) in (Union, UnionType) else {hint}
        literals = {kind for kind in kinds if get_origin(kind) is Literal}
        plain = kinds - literals
        if plain == {str} or (plain & {int, float, bool} and plain <= {int, float, bool, str, NoneType}):
            found[field.name] = plain | {type(value) for kind in literals for value in get_args(kind)}
        elif all(getattr(kind, "__module__", "").startswith("apportion") for kind in kinds - {NoneType}):
            found[field.name] = kinds
    return found
