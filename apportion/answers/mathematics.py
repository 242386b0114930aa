r"""The equivalence of mathematical answers: 1/2, 0.5 and \frac{1}{2} are one vote.

The verdict of math-verify is neither symmetric (an interval and an inequality are equal in one direction) nor
transitive (50% equals both 1/2 and 50). Here a pair is equal if either direction says so.

Reference: math-verify, by Hynek Kydlíček, github.com/huggingface/Math-Verify.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from threading import Lock
from typing import Self, TypeVar

from apportion.answers.math_process import MathProcess
from apportion.answers.normal_form import LONGEST, Form, equal_by_text, normal_form

T = TypeVar("T")

QUICK_SECONDS = 0.3
"""Processor time of a pair in the quick lane. Few pairs need a tenth of it."""
REMEMBERED = 2**16
"""Pairs whose verdict is kept in memory."""


class MathVerify:
    r"""Answers are equal if their text, their value or math-verify says so. ``async with`` or ``with`` closes it.

    Most pairs need no mathematics: equal text is an equal answer, numbers and fractions are compared by value, and what
    math-verify would not read whole equals only the same text (``normal_form``). So does a power or a factorial of
    more than a million digits.

    All other pairs go through the quick lane, a process that compares one pair at a time and gives up after 0.3 seconds
    of processor time. Such a pair goes on in the slow lane, another process with ``timeout_seconds`` of processor time
    for a pair, so other pairs need not wait for it. A pair that is too slow even there counts as different. In each
    lane, both answers of a pair that was too slow are compared with "0", unless one is a plain number. One that is slow
    against "0" too goes to the slow lane at once from then on, or is compared as text.

    50% is both 1/2 and 50, the pair (1,2) is the open interval, and 1,2 is both that and the set. (8-2)*4 is 24, so
    use ``ExactMatch`` if formulas are the answers, as in Game of 24.

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
        self._quick = _Lane("quick", min(QUICK_SECONDS, timeout_seconds))
        self._slow = _Lane("slow", timeout_seconds)
        self._remembering = Lock()
        self._verdicts: dict[tuple[str, str], bool] = {}
        self._slow_answers: set[str] = set()
        self._hanging: set[str] = set()

    async def find_equal(self, answer: str, known: Sequence[str]) -> int | None:
        """Return the index of the first of ``known`` that means the same as ``answer``; None if none does.

        An equal text is preferred to an earlier answer that only mathematics finds equal. Many tasks may call this at
        once: their pairs are compared one at a time in each lane.
        """
        form, forms = normal_form(answer), [normal_form(other) for other in known]
        texts = [other.text for other in forms]
        if form.text and form.text in texts:
            return texts.index(form.text)
        for index, other in enumerate(forms):
            same, pair = self._known(form, other), (_asked(form), _asked(other))
            if same is None:
                same = await asyncio.wrap_future(self._quick.submit(self._compare_quickly, *pair))
            if same is None:
                same = await asyncio.wrap_future(self._slow.submit(self._compare_slowly, *pair))
            if same:
                return index
        return None

    def same(self, first: str, second: str) -> bool:
        """Return whether the two mean the same. It blocks, so it suits callers without an event loop."""
        forms = normal_form(first), normal_form(second)
        same, pair = self._known(*forms), (_asked(forms[0]), _asked(forms[1]))
        if same is None:
            same = self._quick.submit(self._compare_quickly, *pair).result()
        return self._slow.submit(self._compare_slowly, *pair).result() if same is None else same

    def reads(self, answer: str) -> bool:
        r"""Return whether ``answer`` is a number, words or mathematics, not a text that equals only itself.

        >>> with MathVerify() as math:
        ...     [math.reads(answer) for answer in ("1/2", "no solution", r"2\sqrt{3}", r"\frac{1}{")]
        [True, True, True, False]
        """
        form = normal_form(answer)
        if not form.text or len(form.text) > LONGEST or not form.formula or form.value is not None:
            return 0 < len(form.text) <= LONGEST
        asked = _asked(form)
        read = self._quick.submit(self._quick.process.reads, asked).result()
        return (self._slow.submit(self._slow.process.reads, asked).result() if read is None else read) is True

    async def aclose(self) -> None:
        """Stop the processes and wait until they are gone. Current and later comparisons raise RuntimeError."""
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Close as ``aclose`` does, for callers without an event loop."""
        for lane in (self._quick, self._slow):
            lane.process.close()
        for lane in (self._quick, self._slow):
            lane.thread.shutdown()
            lane.process.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _known(self, first: Form, second: Form) -> bool | None:
        """Return the verdict if text, value or memory gives it, else None."""
        verdict = equal_by_text(first, second)
        return self._remembered(_asked(first), _asked(second)) if verdict is None else verdict

    def _remembered(self, first: str, second: str) -> bool | None:
        return False if not self._hanging.isdisjoint((first, second)) else self._verdicts.get((first, second))

    def _compare_quickly(self, first: str, second: str) -> bool | None:
        """Return the verdict, or None if the pair belongs to the slow lane. Runs in the thread of the quick lane."""
        known = self._remembered(first, second)  # the same pair may have been compared while this one waited
        if known is not None or not self._slow_answers.isdisjoint((first, second)):
            return known
        verdict = self._quick.process.same(first, second)
        if verdict is not None:
            return self._remember(first, second, verdict)
        self._slow_answers |= _slow_alone(self._quick.process, first, second)
        return None

    def _compare_slowly(self, first: str, second: str) -> bool:
        """Return the verdict; False if there is none in time. Runs in the thread of the slow lane."""
        known = self._remembered(first, second)
        if known is not None:
            return known
        verdict = self._slow.process.same(first, second)
        if verdict is None:
            self._hanging |= _slow_alone(self._slow.process, first, second)
        return self._remember(first, second, bool(verdict))

    def _remember(self, first: str, second: str, verdict: bool) -> bool:
        with self._remembering:  # threads of both lanes may write at once
            for pair in ((first, second), (second, first)):
                self._verdicts[pair] = verdict
            while len(self._verdicts) > 2 * REMEMBERED:
                self._verdicts.pop(next(iter(self._verdicts)))
        return verdict


def _asked(form: Form) -> str:
    """Return the text that is sent to the worker: the formula, with a percent sign at its end for a percentage."""
    return form.formula + r"\%" * form.percent


def _slow_alone(process: MathProcess, first: str, second: str) -> set[str]:
    """Return the answers of a slow pair that are slow to read alone, without the other."""
    suspects = {asked for asked in (first, second) if normal_form(asked).value is None}
    return suspects if len(suspects) == 1 else {asked for asked in suspects if process.same(asked, "0") is None}


class _Lane:
    """A process, and the thread in which its callers take turns."""

    def __init__(self, name: str, timeout_seconds: float) -> None:
        self.process = MathProcess(timeout_seconds)
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"math-verify-{name}")

    def submit(self, function: Callable[..., T], *arguments: str) -> Future[T]:
        """Run ``function`` in turn. Raises RuntimeError after the process was closed."""
        self.process.check_open()
        return self.thread.submit(function, *arguments)
