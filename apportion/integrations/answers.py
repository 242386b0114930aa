"""How answers are read from completions, for votes: extracted, and compared."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from apportion.verifiers import EQUIVALENCES, Equivalence, extract
from apportion.verifiers.equivalence import Classes


@dataclass
class Answers:
    """How answers are read: ``how`` as ``extract`` takes it, or a function; ``equivalence`` by name, or one.

    An equivalence given by name is made when it is first needed, and closed by ``close``.
    """

    how: str | Callable[[str], str | None] = "auto"
    equivalence: str | Equivalence = "exact"
    _made: Equivalence | None = field(default=None, init=False, repr=False)

    def read(self, text: str) -> str | None:
        """The answer in ``text``; None where there is none."""
        return extract(text, self.how) if isinstance(self.how, str) else self.how(text)

    def classes(self) -> Classes:
        """For the answers to one question."""
        if not isinstance(self.equivalence, str):
            return Classes(self.equivalence)
        if self._made is None:
            self._made = EQUIVALENCES[self.equivalence]()
        return Classes(self._made)

    def close(self) -> None:
        """Frees what comparing took, where it was made here."""
        if self._made is not None:
            alone(self._made.aclose)
        self._made = None


def alone(work: Callable):  # type: ignore[type-arg, no-untyped-def]
    """What the coroutine of ``work`` gives, in an event loop of its own, inside a running one too."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(lambda: asyncio.run(work())).result()
