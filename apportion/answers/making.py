"""Extractors and equivalences by the names in a configuration, or from functions and objects of the user.

A name is one of the registry, or "module:function" or "path/to/file.py:function". Everything that can be checked is
checked when it is made: the name, the import, the parameters and the settings.
"""

import inspect
from collections.abc import Callable, Container
from functools import partial
from typing import Any

from apportion.answers.equivalence import Equivalence, ExactMatch
from apportion.answers.extraction import EXTRACTORS, Extractor
from apportion.answers.judge import Ask, JudgeEquivalence
from apportion.answers.mathematics import MathVerify
from apportion.answers.phrase import PhraseMatch
from apportion.answers.user_code import UserEquivalence, UserExtractor
from apportion.untrusted import shown
from apportion.user_functions import import_named

EQUIVALENCES: dict[str, Callable[..., Equivalence]] = {
    "exact": ExactMatch,
    "math": MathVerify,
    "phrase": PhraseMatch,
}
"""Every equivalence by name that needs no server. ``make_equivalence`` has also "judge"."""

JUDGE = "judge"
"""The equivalence that asks a model."""
MAKERS = {**EQUIVALENCES, JUDGE: JudgeEquivalence}
NAMES = tuple(MAKERS)
"""Every equivalence by name."""


def make_extractor(how: str | Extractor) -> Extractor:
    """Return the extractor that ``how`` names: one of ``EXTRACTORS``, or "module:function"; or a function.

    A function gets the text of a completion and returns the answer, or None. ``read_answer`` calls it in a thread.

    Raises ValueError if there is none, or if it does not take one text, and whatever importing its module raises.

    >>> make_extractor("boxed")(r"So it is \\\\boxed{4}.")
    '4'
    >>> make_extractor("textwrap:dedent")("  42 ")
    '42'
    """
    if isinstance(how, str) and how in EXTRACTORS:
        return EXTRACTORS[how]
    if not isinstance(how, str) and (isinstance(how, UserExtractor) or how in EXTRACTORS.values()):
        return how
    function, name = _found("extract", how, EXTRACTORS)
    if inspect.isclass(function) or not callable(function) or inspect.iscoroutinefunction(function):
        raise ValueError(f"extract must be a plain function from text to answer or None, got {name}; write one")
    if not _takes(function, 1, ()):
        raise ValueError(f"extract must take one argument, the text, got {name}; give it that one")
    return UserExtractor(function, name)


async def read_answer(extractor: Extractor, text: str) -> str | None:
    """Return the answer in ``text``. A function of the user runs in a thread, so that it does not block others."""
    return await extractor.read(text) if isinstance(extractor, UserExtractor) else extractor(text)


def read_answer_now(extractor: Extractor, text: str) -> str | None:
    """Return the answer in ``text``, as ``read_answer`` does, for callers that cannot wait in an event loop."""
    return extractor.read_now(text) if isinstance(extractor, UserExtractor) else extractor(text)


def make_equivalence(how: str | object, *, ask: Ask | None = None, **settings: Any) -> Equivalence:
    """Return the equivalence that ``how`` names or is. It is closed by its ``aclose``.

    ``how`` is one of ``NAMES``, "module:name", or what such a name stands for:

    - a function of two answers, the later one first, that returns True or False. It may be async.
    - an ``Equivalence``, or a class or a function without required arguments that returns one.

    ``settings`` are its keyword arguments. ``ask`` sends prompts to the model of the judge.

    Raises ValueError if there is none, if it or a setting cannot be used, or if a judge has no ``ask``; ImportError for
    a missing package, and whatever importing its module raises.

    >>> make_equivalence("math", timeout=9)
    Traceback (most recent call last):
    ValueError: equivalence 'math' must have settings that it knows, got timeout; it has timeout_seconds
    """
    maker = _maker(how, settings)
    if how == JUDGE:
        if ask is None:
            raise ValueError("a judge must have a model to ask, got none; vote with a server, or choose another")
        maker = partial(maker, ask)
    made = maker()
    if not _is_equivalence(made):
        raise ValueError(
            f"equivalence must have async find_equal and aclose, got {shown(made)} from {_name(how)}; add them"
        )
    return made


def check_equivalence(how: str | object, **settings: Any) -> None:
    """Raise what ``make_equivalence`` would raise for these, as far as that is known without making a user's own."""
    maker = _maker(how, settings)
    if how == JUDGE:
        maker(_not_asked)
    elif isinstance(how, str) and how in EQUIVALENCES:
        maker()


def for_question(equivalence: Equivalence, question: str) -> Equivalence:
    """Return ``equivalence`` for the answers to ``question``: its ``for_question(question)`` if it has that method.

    What is returned is not closed. ``equivalence`` is.
    """
    method = getattr(equivalence, "for_question", None)
    return equivalence if method is None else method(question)


def _maker(how: str | object, settings: dict[str, Any]) -> Callable[..., Any]:
    """Return what makes the equivalence, with its settings."""
    if isinstance(how, str) and how in NAMES:
        return _with_settings(MAKERS[how], settings, repr(how))
    found, name = _found("equivalence", how, NAMES)
    if _is_equivalence(found) and not inspect.isclass(found):
        _refuse_settings(settings, name)
        return lambda: found
    if not callable(found):
        raise ValueError(
            f"equivalence must be a function of two answers or have async find_equal and aclose, got {name}; write one"
        )
    if not inspect.isclass(found) and _takes(found, 2, settings):
        same = _with_settings(found, settings, name) if settings else found
        return lambda: UserEquivalence(same, name)
    if inspect.iscoroutinefunction(found) or not _takes(found, 0, settings):
        raise ValueError(
            f"equivalence must take two answers, or nothing and return an Equivalence, got {name}; correct it"
        )
    return _with_settings(found, settings, name)


def _found(setting: str, how: object, names: Any) -> tuple[Any, str]:
    """Return the object that ``how`` names, or ``how`` itself, and a name for errors."""
    if not isinstance(how, str):
        return how, _name(how)
    if ":" not in how:
        raise ValueError(f'{setting} must be one of {", ".join(names)}, or "module:function", got {shown(how)}; choose')
    found = import_named(how)
    if found is None:
        raise ValueError(f"{setting} must be in its module, got {how!r}; define it there")
    return found, how


def _name(how: object) -> str:
    return how if isinstance(how, str) else getattr(how, "__qualname__", None) or shown(how)


def _is_equivalence(found: object) -> bool:
    return all(inspect.iscoroutinefunction(getattr(found, name, None)) for name in ("find_equal", "aclose"))


def _takes(function: Callable[..., Any], count: int, settings: Container[str]) -> bool:
    """Return whether ``function`` must get ``count`` arguments by position, and no others apart from ``settings``."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some builtins have no signature
        return count > 0
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return count > 0
    needed = [
        each
        for each in parameters
        if each.default is each.empty and each.kind is not each.VAR_KEYWORD and each.name not in settings
    ]
    return len(needed) == count and not any(each.kind is each.KEYWORD_ONLY for each in needed)


def _with_settings(function: Callable[..., Any], settings: dict[str, Any], name: str) -> Callable[..., Any]:
    """Return ``function`` with ``settings`` as keyword arguments. Raises ValueError for one that it does not take."""
    parameters = inspect.signature(function).parameters.values()
    if not any(each.kind is each.VAR_KEYWORD for each in parameters):
        known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY or p.default is not p.empty]
        _refuse_settings({key: value for key, value in settings.items() if key not in known}, name, known)
    return partial(function, **settings)


def _refuse_settings(unknown: dict[str, Any], name: str, known: list[str] | None = None) -> None:
    if unknown:
        raise ValueError(
            f"equivalence {name} must have settings that it knows, got {', '.join(unknown)}; "
            f"it has {', '.join(known or ['none'])}"
        )


async def _not_asked(prompt: str) -> Any:
    raise RuntimeError("nothing is asked while settings are checked")
