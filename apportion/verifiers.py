"""Verifiers: completion and gold answer in, verdict out.

A verifier reads the stated answer by an extractor of ``apportion.answers``, and compares it with gold.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Self

from apportion.answers import EXTRACTORS, MathVerify, extract
from apportion.checks import choices
from apportion.untrusted import shown

__all__ = ["Choice", "Exact", "Math", "Verifier"]


@dataclass(frozen=True)
class Verifier(ABC):
    """Says whether a completion is right. A frozen dataclass of its settings; copying and pickling keep only these.

    ``extract`` names an extractor of ``apportion.answers.EXTRACTORS``.
    """

    extract: str = "auto"

    name: ClassVar[str]

    def __post_init__(self) -> None:
        if self.extract not in EXTRACTORS:
            raise ValueError(f"extract must be known, got {shown(self.extract)}; {choices(self.extract, EXTRACTORS)}")

    def answer(self, text: str) -> str | None:
        """Return the answer that ``text`` states; None if it states none."""
        return extract(text, self.extract)

    def verdict(self, text: str, gold: str | None) -> float | None:
        """Return 1.0 if the completion ``text`` is right, 0.0 if it is wrong or states no answer.

        None if it cannot be known, because ``gold`` is None or cannot be read. An error inside is raised.
        """
        if gold is None or not self._reads(gold):
            return None
        answer = self.answer(text)
        return float(answer is not None and self._same(answer, gold))

    def best_verdict(self, text: str, golds: Sequence[str | None]) -> float | None:
        """Return the highest verdict on ``text`` by any of its right answers ``golds``; None if all are unknown."""
        verdicts = (self.verdict(text, gold) for gold in golds)
        return max((verdict for verdict in verdicts if verdict is not None), default=None)

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Free resources, such as a process. They are taken again when next needed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _reads(self, gold: str) -> bool:
        """Return whether the gold answer can be compared."""
        return bool(gold.strip())

    @abstractmethod
    def _same(self, answer: str, gold: str) -> bool:
        """Return whether the two answers mean the same."""


@dataclass(frozen=True)
class Exact(Verifier):
    """Right if the stated answer is the text of gold. White space around either is ignored.

    >>> Exact().verdict("The answer is Paris.", "Paris"), Exact().verdict("It is Paris", "Paris")
    (1.0, 0.0)
    """

    name: ClassVar[str] = "exact"

    def _same(self, answer: str, gold: str) -> bool:
        return answer.strip() == gold.strip()


@dataclass(frozen=True)
class Choice(Verifier):
    """Right if the chosen letter, A to J in either case, is that of gold. Unknown if gold is no letter.

    >>> choice = Choice()
    >>> choice.verdict("Answer: (c)", "c"), choice.verdict("The answer is A dog.", "A"), choice.verdict("A", "dog")
    (1.0, 0.0, None)
    """

    extract: str = "choice"

    name: ClassVar[str] = "choice"

    def _reads(self, gold: str) -> bool:
        return self.answer(gold) is not None

    def _same(self, answer: str, gold: str) -> bool:
        return answer == self.answer(gold)


@dataclass(frozen=True)
class Math(Verifier):
    r"""Right if the stated answer equals gold by ``MathVerify``: by text, else by math-verify in a process.

    A comparison that takes ``timeout_seconds`` of processor time counts as wrong. The process starts when it is first
    needed.

    Raises ImportError if math-verify is not installed.

    >>> with Math("boxed") as math:
    ...     math.verdict(r"So it is \boxed{0.5}.", r"\frac{1}{2}"), math.verdict("So it is 0.5", "1/2")
    (1.0, 0.0)
    """

    timeout_seconds: float = 5.0

    name: ClassVar[str] = "math"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._equivalence  # noqa: B018 - a missing package or wrong setting should be known now

    def close(self) -> None:
        if held := self.__dict__.pop("_equivalence", None):
            held.close()

    @cached_property
    def _equivalence(self) -> MathVerify:
        return MathVerify(self.timeout_seconds)

    @cached_property
    def _readable(self) -> dict[str, bool]:
        return {}

    def _reads(self, gold: str) -> bool:
        if gold not in self._readable:
            self._readable[gold] = self._equivalence.reads(gold)
        return self._readable[gold]

    def _same(self, answer: str, gold: str) -> bool:
        return self._equivalence.same(answer, gold)
