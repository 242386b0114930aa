r"""Which answers mean the same: 1/2, 0.5 and \frac{1}{2} are one vote.

Votes are counted by class. An answer joins the first class, in order of appearance, whose first answer it equals. If it
equals none, it starts a new class. The order matters, because math-verify's verdict is neither symmetric (an interval
and an inequality are equal in one direction) nor transitive (50% equals both 1/2 and 50). Here a pair is equal if
either direction says so.

Reference: math-verify, by Hynek Kydlíček, github.com/huggingface/Math-Verify.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any, Protocol, Self, TypeVar

from apportion.answers.math_process import MathProcess
from apportion.answers.normal_form import LONGEST, equal_by_text, is_text, normal_form

T = TypeVar("T")

REMEMBERED = 2**16
"""Pairs whose verdict is kept in memory."""


class Equivalence(Protocol):
    """Decides whether two answers are one vote. Close it with ``aclose``, for example by ``contextlib.aclosing``."""

    async def find_equal(self, answer: str, known: Sequence[str]) -> int | None:
        """Return the index of the first of ``known`` that means the same as ``answer``; None if none does."""

    async def aclose(self) -> None:
        """Free all resources. Nothing can be compared afterwards."""


class ExactMatch(Equivalence):
    """Answers are equal if their texts are. White space around them is ignored."""

    async def find_equal(self, answer: str, known: Sequence[str]) -> int | None:
        """Return the index of the first of ``known`` with the same text; None if none has it."""
        texts = [other.strip() for other in known]
        return texts.index(answer.strip()) if answer.strip() in texts else None

    async def aclose(self) -> None:
        """Do nothing, because there is nothing to free."""


class MathVerify(Equivalence):
    r"""Answers are equal if math-verify says so in either direction. ``async with`` or ``with`` closes it.

    Text decides most pairs. The same normal form is the same answer. Different integers, words and decimals of up to
    six places are different answers. Fractions of integers are compared by value. All other pairs are compared in one
    process, one at a time. A pair that takes ``timeout_seconds`` counts as different, and the process is killed and
    started again. An answer that takes as long against "0" is compared as text from then on.

    math-verify ignores units (5 cm is 5 m) and compares six decimal places. To it 50% is both 1/2 and 50, the pair
    (1,2) is the open interval, and 1,2 is both that and the set. (8-2)*4 is 24, so use ``ExactMatch`` if formulas are
    the answers, as in Game of 24.

    Raises ImportError if math-verify is not installed.

    >>> with MathVerify() as math:
    ...     math.same("1/2", "0.5"), math.same(r"x = \frac12", "0.5"), math.same("[1,2]", "(1,2)")
    (True, True, False)
    """

    def __init__(self, timeout_seconds: float = 5.0) -> None:
        if not 0 < timeout_seconds < float("inf"):
            raise ValueError(f"timeout_seconds must be positive and finite, got {timeout_seconds}; 5 is usual")
        if find_spec("math_verify") is None:
            raise ImportError(
                "mathematical equivalence needs math-verify, which is not installed; pip install 'apportion[vote]'"
            )
        self._process = MathProcess(timeout_seconds)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="math-verify")
        self._verdicts: dict[tuple[str, str], bool] = {}
        self._hanging: set[str] = set()

    async def find_equal(self, answer: str, known: Sequence[str]) -> int | None:
        """Return the index of the first of ``known`` that means the same as ``answer``; None if none does.

        An equal text is preferred to an earlier answer that only mathematics finds equal. Many tasks may call this at
        once: their pairs are compared one at a time.
        """
        form, forms = normal_form(answer), [normal_form(other) for other in known]
        if form and form in forms:
            return forms.index(form)
        for index, other in enumerate(forms):
            same = self._known(form, other)
            if same is None:
                same = await asyncio.wrap_future(self._ask(form, other))
            if same:
                return index
        return None

    def same(self, first: str, second: str) -> bool:
        """Return whether the two mean the same. It blocks, so it suits callers without an event loop."""
        first, second = normal_form(first), normal_form(second)
        known = self._known(first, second)
        return self._ask(first, second).result() if known is None else known

    def reads(self, answer: str) -> bool:
        r"""Return whether ``answer`` is a number, words or mathematics, not a text that equals only itself.

        >>> with MathVerify() as math:
        ...     [math.reads(answer) for answer in ("1/2", "no solution", r"2\sqrt{3}", r"\frac{1}{")]
        [True, True, True, False]
        """
        form = normal_form(answer)
        if not form or len(form) > LONGEST:
            return False
        if is_text(form) or equal_by_text(form, "0") is not None:
            return True
        self._process.check_open()
        return self._thread.submit(self._process.reads, form).result() is True

    async def aclose(self) -> None:
        """Stop the process and wait until it is gone. Current and later comparisons raise RuntimeError."""
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Close as ``aclose`` does, for callers without an event loop."""
        self._process.close()
        self._thread.shutdown()
        self._process.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _known(self, first: str, second: str) -> bool | None:
        """Return the verdict if text or memory gives it, else None."""
        verdict = equal_by_text(first, second)
        if verdict is None and not self._hanging.isdisjoint((first, second)):
            return False
        return self._verdicts.get((first, second)) if verdict is None else verdict

    def _ask(self, first: str, second: str) -> Future[bool]:
        self._process.check_open()
        return self._thread.submit(self._compare, first, second)

    def _compare(self, first: str, second: str) -> bool:
        """Return the verdict of the process. This runs in one thread, so pairs take turns and no caller is blocked."""
        known = self._known(first, second)  # the same pair may have been compared while this one waited
        if known is not None:
            return known
        verdict = self._process.same(first, second)
        if verdict is None:  # find out which of the two hangs before this caller's next pair
            self._thread.submit(self._test_alone, first)
            self._thread.submit(self._test_alone, second)
        for pair in ((first, second), (second, first)):
            self._verdicts[pair] = bool(verdict)
        while len(self._verdicts) > 2 * REMEMBERED:
            self._verdicts.pop(next(iter(self._verdicts)))
        return bool(verdict)

    def _test_alone(self, answer: str) -> None:
        if answer not in self._hanging and self._process.same(answer, "0") is None:
            self._hanging.add(answer)


EQUIVALENCES: dict[str, Callable[..., Equivalence]] = {"exact": ExactMatch, "math": MathVerify}
"""Every equivalence by name."""


class AnswerClasses:
    """The different answers to one question, each as it was first written."""

    def __init__(self, equivalence: Equivalence) -> None:
        self._equivalence = equivalence
        self._known: list[str] = []
        self._class: dict[str, str] = {}

    async def join(self, answer: str) -> str:
        """Add ``answer``, and return the first answer of its class: itself if it starts a new one."""
        if answer not in self._class:
            index = await self._equivalence.find_equal(answer, self._known)
            if index is None:
                self._known.append(answer)
            self._class[answer] = self._known[-1 if index is None else index]
        return self._class[answer]


def merge_answers(answers: Sequence[str | None], equivalence: Equivalence) -> list[str | None]:
    """Return the ``answers`` to one question, each replaced by the first that means the same; None stays None.

    The result is what ``decide`` counts. This works inside a running event loop too, as in a notebook, and
    leaves ``equivalence`` open.

    >>> merge_answers([" 7", "9", None, "7"], ExactMatch())
    [' 7', '9', None, ' 7']
    """

    async def merge() -> list[str | None]:
        classes = AnswerClasses(equivalence)
        return [None if answer is None else await classes.join(answer) for answer in answers]

    return run_coroutine(merge())


def run_coroutine(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run ``coroutine`` to its end and return its result, also where an event loop is running already.

    It runs in a thread and an event loop of its own, and blocks the caller.
    """
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
