"""Which answers mean the same, so that votes can be counted by class.

An answer joins the first class, in order of appearance, whose first answer it equals. If it equals none, it starts a
new class. The order matters if an equivalence is not transitive.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Equivalence(Protocol):
    """Decides whether two answers are one vote. Close it with ``aclose``, for example by ``contextlib.aclosing``."""

    async def find_equal(self, answer: str, known: Sequence[str]) -> int | None:
        """Return the index of the first of ``known`` that means the same as ``answer``; None if none does."""

    async def aclose(self) -> None:
        """Free all resources, none by default. Nothing can be compared afterwards."""
        return  # not abstract, so that subclasses need not define it


class ExactMatch(Equivalence):
    """Answers are equal if their texts are. White space around them is ignored."""

    async def find_equal(self, answer: str, known: Sequence[str]) -> int | None:
        """Return the index of the first of ``known`` with the same text; None if none has it."""
        texts = [other.strip() for other in known]
        return texts.index(answer.strip()) if answer.strip() in texts else None


class AnswerClasses:
    """The different answers to one question, each as it was first written.

    ``ambiguous`` is the number of different texts that equal several classes. Such a text joins the first of them. If
    there are many, the equivalence is not transitive, and the order of the samples decides what is counted together. It
    is counted if ``all_classes`` is set, because it takes more comparisons.
    """

    def __init__(self, equivalence: Equivalence, *, all_classes: bool = False) -> None:
        self.ambiguous = 0
        self._equivalence = equivalence
        self._all_classes = all_classes
        self._known: list[str] = []
        self._class: dict[str, str] = {}

    async def join(self, answer: str) -> str:
        """Add ``answer``, and return the first answer of its class: itself if it starts a new one."""
        if answer not in self._class:
            index = await self._equivalence.find_equal(answer, self._known)
            if index is None:
                self._known.append(answer)
            elif self._all_classes:
                others = [other for place, other in enumerate(self._known) if place != index]
                self.ambiguous += await self._equivalence.find_equal(answer, others) is not None
            self._class[answer] = self._known[-1 if index is None else index]
        return self._class[answer]


async def is_correct(answer: str | None, golds: Sequence[str], equivalence: Equivalence) -> bool:
    """Return whether ``answer`` means the same as one of ``golds``, the accepted answers; no answer does not.

    >>> run_coroutine(is_correct("NYC", ["New York City", "NYC"], ExactMatch()))
    True
    """
    return answer is not None and await equivalence.find_equal(answer, golds) is not None


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
    """Run ``coroutine`` to its end in an event loop of its own, and return its result. It blocks the caller.

    Where an event loop is running already it runs in another thread, which Ctrl-C does not reach. The loop that the
    caller's thread has set stays set.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            return runner.run(coroutine)
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
