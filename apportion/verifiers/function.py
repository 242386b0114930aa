"""The function verifier: a Python function of the user scores a completion against gold."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from apportion.questions import Question
from apportion.untrusted import shown
from apportion.user_functions import import_function
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
