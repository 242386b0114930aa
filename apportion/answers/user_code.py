"""The user's own extraction and equivalence, called in threads, with errors that name them.

A function that raises, returns something else, or takes too long ends the run by an AnswerFunctionError, before more is
paid for. It is not counted as an answer of its own, because then a defect in it would change votes unnoticed.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Thread
from typing import Any, TypeVar

import numpy as np

from apportion.answers.equivalence import Equivalence
from apportion.untrusted import shown

T = TypeVar("T")

FUNCTION_SECONDS = 60.0
"""Time limit of one call of a user's function."""
REMEMBERED = 2**16
"""Pairs whose verdict is kept in memory."""


class AnswerFunctionError(RuntimeError):
    """The error of a user's function for answers. The message is one line: function, problem, remedy."""


@dataclass(frozen=True)
class UserExtractor:
    """Calls ``function`` with the text of a completion, which returns the answer, or None if there is none.

    White space around the answer is removed, and an answer of nothing else is None.

    >>> UserExtractor(lambda text: text.partition("=")[2], "after_sign")("x = 7 ")
    '7'
    """

    function: Callable[[str], str | None]
    name: str
    _too_slow: list[bool] = field(default_factory=list, init=False, repr=False, compare=False)

    def __call__(self, text: str) -> str | None:
        """Return the answer. Raises AnswerFunctionError if the function fails or returns something else."""
        try:
            answer = self.function(text)
        except (Exception, SystemExit) as error:
            raise _failed(f"{self.name} must return an answer or None for {shown(text)}", error) from error
        if answer is None:
            return None
        if not isinstance(answer, str):
            raise AnswerFunctionError(
                f"{self.name} must return a text or None, got {shown(answer)} for {shown(text)}; correct it"
            )
        return answer.strip() or None

    def read_now(self, text: str) -> str | None:
        """Return the answer as ``read`` does, but block the caller until then.

        After a call that took too long, all others fail at once, so that replies in flight do not block it in turn.
        """
        try:
            return start_thread(self, text).result(0 if self._too_slow else FUNCTION_SECONDS)
        except TimeoutError:
            self._too_slow.append(True)
            raise _too_slow(f"{self.name} must return for {shown(text)}") from None

    async def read(self, text: str) -> str | None:
        """Return the answer as a call does, but run the function in a thread. Errors also if it takes too long."""
        return await _in_time(in_thread(self, text), f"{self.name} must return for {shown(text)}")


@dataclass
class UserEquivalence(Equivalence):
    """Answers are equal if ``same(answer, other)`` is true, where ``other`` came first. Equal texts are not compared.

    ``same`` may be async. If it is not, it runs in threads, for several questions at once. Its verdicts are remembered.
    """

    same: Callable[[str, str], Any]
    name: str
    _verdicts: dict[tuple[str, str], bool] = field(default_factory=dict, init=False, repr=False)

    async def find_equal(self, answer: str, known: Sequence[str]) -> int | None:
        """Return the index of the first of ``known`` that equals ``answer``; None if none does.

        Raises AnswerFunctionError if the function fails, takes too long or does not return True or False.
        """
        if answer in known:
            return known.index(answer)
        for index, other in enumerate(known):
            pair = (answer, other)
            if pair not in self._verdicts:
                self._verdicts[pair] = await self._compare(answer, other)
                while len(self._verdicts) > REMEMBERED:
                    self._verdicts.pop(next(iter(self._verdicts)))
            if self._verdicts[pair]:
                return index
        return None

    async def _compare(self, answer: str, other: str) -> bool:
        what = f"{self.name} must return True or False for {shown(answer)} and {shown(other)}"
        call = self.same(answer, other) if _is_async(self.same) else in_thread(self.same, answer, other)
        try:
            verdict = await _in_time(call, what)
        except AnswerFunctionError:
            raise
        except (Exception, SystemExit) as error:
            raise _failed(what, error) from error
        if not isinstance(verdict, (bool, np.bool_)):
            raise AnswerFunctionError(f"{what}, got {shown(verdict)}; correct it")
        return bool(verdict)


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Return ``function(*arguments)``, run in a thread that does not keep the program from ending."""
    return await asyncio.wrap_future(start_thread(function, *arguments))


def start_thread(function: Callable[..., T], *arguments: Any) -> Future[T]:
    """Return the future of ``function(*arguments)``, run in a thread that does not keep the program from ending."""
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result.set_result(function(*arguments))
        except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
            result.set_exception(error)

    Thread(target=run, daemon=True, name="apportion-answers").start()
    return result


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def _in_time(call: Awaitable[T], what: str) -> T:
    try:
        async with asyncio.timeout(FUNCTION_SECONDS) as limit:
            return await call
    except TimeoutError:
        if not limit.expired():
            raise  # an error that the function itself raised
        raise _too_slow(what) from None


def _too_slow(what: str) -> AnswerFunctionError:
    return AnswerFunctionError(f"{what}, took more than {FUNCTION_SECONDS:g} seconds; make it faster")


def _failed(what: str, error: Exception | SystemExit) -> AnswerFunctionError:
    return AnswerFunctionError(f"{what}, raised {type(error).__name__}: {error}; correct it")
