r"""The equivalence of mathematical answers: 1/2, 0.5 and \frac{1}{2} are one vote.

math-verify's verdict is neither symmetric (an interval and an inequality are equal in one direction) nor transitive
(50% equals both 1/2 and 50). Here a pair is equal if either direction says so.

Reference: math-verify, by Hynek Kydlíček, github.com/huggingface/Math-Verify.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from threading import Lock
from typing import Self, TypeVar

from apportion.answers.math_process import MathProcess
from apportion.answers.normal_form import LONGEST, equal_by_text, is_plain_number, is_text, normal_form

T = TypeVar("T")

QUICK_SECONDS = 0.3
"""Time limit of a pair in the quick lane. Few pairs need a tenth of it."""
REMEMBERED = 2**16
"""Pairs whose verdict is kept in memory."""


class MathVerify:
    r"""Answers are equal if math-verify says so in either direction. ``async with`` or ``with`` closes it.

    Text decides most pairs. The same normal form is the same answer. Different integers, words and decimals of up to
    six places are different answers. Fractions of integers are compared by value. A power or a factorial of more than a
    million digits equals only the same text.

    All other pairs go through the quick lane, a process that compares one pair at a time and gives up after 0.3
    seconds. Such a pair goes on in the slow lane, another process with ``timeout_seconds`` for a pair, so other pairs
    need not wait for it. Each of the two answers is then compared with "0", unless it is a plain number. One that is
    slow against "0" too goes to the slow lane at once from then on. A pair that is too slow even there counts as
    different, and the slow answer, or both if neither was slow against "0", is compared as text from then on.

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
        if form and form in forms:
            return forms.index(form)
        for index, other in enumerate(forms):
            same = self._known(form, other)
            if same is None:
                same = await asyncio.wrap_future(self._quick.submit(self._compare_quickly, form, other))
            if same is None:
                same = await asyncio.wrap_future(self._slow.submit(self._compare_slowly, form, other))
            if same:
                return index
        return None

    def same(self, first: str, second: str) -> bool:
        """Return whether the two mean the same. It blocks, so it suits callers without an event loop."""
        first, second = normal_form(first), normal_form(second)
        same = self._known(first, second)
        if same is None:
            same = self._quick.submit(self._compare_quickly, first, second).result()
        return self._slow.submit(self._compare_slowly, first, second).result() if same is None else same

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
        read = self._quick.submit(self._quick.process.reads, form).result()
        return (self._slow.submit(self._slow.process.reads, form).result() if read is None else read) is True

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

    def _known(self, first: str, second: str) -> bool | None:
        """Return the verdict if text or memory gives it, else None."""
        verdict = equal_by_text(first, second)
        if verdict is None and not self._hanging.isdisjoint((first, second)):
            return False
        return self._verdicts.get((first, second)) if verdict is None else verdict

    def _compare_quickly(self, first: str, second: str) -> bool | None:
        """Return the verdict, or None if the pair belongs to the slow lane. Runs in the thread of the quick lane."""
        known = self._known(first, second)  # the same pair may have been compared while this one waited
        if known is not None or not self._slow_answers.isdisjoint((first, second)):
            return known
        verdict = self._quick.process.same(first, second)
        if verdict is not None:
            return self._remember(first, second, verdict)
        suspects = _suspects(first, second)
        if len(suspects) == 2:  # find out which of them is slow before the next pair
            suspects = {answer for answer in suspects if self._quick.process.same(answer, "0") is None}
        self._slow_answers |= suspects
        return None

    def _compare_slowly(self, first: str, second: str) -> bool:
        """Return the verdict; False if there is none in time. Runs in the thread of the slow lane."""
        known = self._known(first, second)
        if known is not None:
            return known
        verdict = self._slow.process.same(first, second)
        if verdict is None:
            suspects = _suspects(first, second)
            self._hanging |= suspects & self._slow_answers or suspects
        return self._remember(first, second, bool(verdict))

    def _remember(self, first: str, second: str, verdict: bool) -> bool:
        with self._remembering:  # both lanes may be here
            for pair in ((first, second), (second, first)):
                self._verdicts[pair] = verdict
            while len(self._verdicts) > 2 * REMEMBERED:
                self._verdicts.pop(next(iter(self._verdicts)))
        return verdict


def _suspects(first: str, second: str) -> set[str]:
    """Return those of the pair that may be why it takes long."""
    return {answer for answer in (first, second) if not is_plain_number(answer)}


class _Lane:
    """A process, and the thread in which its callers take turns."""

    def __init__(self, name: str, timeout_seconds: float) -> None:
        self.process = MathProcess(timeout_seconds)
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"math-verify-{name}")

    def submit(self, function: Callable[..., T], *arguments: str) -> Future[T]:
        """Run ``function`` in turn. Raises RuntimeError after the process was closed."""
        self.process.check_open()
        return self.thread.submit(function, *arguments)
