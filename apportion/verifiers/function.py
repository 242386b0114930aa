"""The function verifier: a Python function of the user scores a completion against gold."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from math import isfinite
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from apportion.questions import Question
from apportion.untrusted import shown
from apportion.verifiers.base import Verifier, refuse_questions


@dataclass(frozen=True)
class Function(Verifier):
    """Scores with ``function(completion, gold)``, which returns True, False, a finite score, or None if unknown.

    ``function`` is written "module:function" or "path/to/file.py:function". If ``needs_gold`` is false it gets None for
    a question without gold. Its errors are passed on.

    Raises ValueError if the function does not exist or does not take two arguments, and whatever importing it raises.

    >>> Function("operator:contains").verdict("So it is 42.", "42")
    1.0
    """

    function: str
    needs_gold: bool = True

    name: ClassVar[str] = "function"

    def __post_init__(self) -> None:
        try:
            inspect.signature(self._function).bind("completion", "gold")
        except TypeError as error:
            raise ValueError(
                f"function must take a completion and gold, got {self.function!r} ({error}); give it those two"
            ) from error
        if inspect.iscoroutinefunction(self._function):
            raise ValueError(f"function must not be async, got {self.function!r}; return the score itself")

    def verdict(self, text: str, gold: str | None) -> float | None:
        score = self._function(text, gold)
        if score is None:
            return None
        if not isinstance(score, (Real, np.bool_)) or not isfinite(score):
            raise TypeError(
                f"{self.function} must return a bool, a finite number or None, got {shown(score)}; correct it"
            )
        return float(score)

    def check(self, questions: Sequence[Question]) -> None:
        missing = (question for question in questions if self.needs_gold and question.gold is None)
        refuse_questions(missing, "there", "add it, or set needs_gold = false if the function works without it")

    @cached_property
    def _function(self) -> Callable[[str, str | None], Any]:
        return import_function(self.function)


def import_function(where: str) -> Callable[..., Any]:
    """Return the function that ``where`` names: "module:function" or "path/to/file.py:function".

    Raises ValueError if it does not exist, and whatever importing its module raises.

    >>> import_function("math:sqrt")(4)
    2.0
    """
    place, colon, name = where.rpartition(":")
    if not colon or not place or not name:
        raise ValueError(f'function must be "module:function" or "file.py:function", got {where!r}; name both')
    module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"function must be in its module, got {where!r}; define {name} in {place}")
    return function


def _import_module(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists, but something that it imports does not
        raise ValueError(
            f"function must be in a module that can be imported, got {name!r}; install it, or give file.py:function"
        ) from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"function must be in a file that exists, got {str(path)!r}; check the path")
    spec = spec_from_file_location(f"apportion_user_{path.stem}", path.resolve())
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
