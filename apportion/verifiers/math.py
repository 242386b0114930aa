"""The math verifier: the stated answer must equal gold as mathematics."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from apportion.answers import MathVerify
from apportion.questions import Question
from apportion.verifiers.base import StatedAnswer, refuse_questions


@dataclass(frozen=True)
class Math(StatedAnswer):
    r"""Right if the stated answer equals gold by ``MathVerify``: by text, else by math-verify in a process.

    A comparison that takes ``timeout_seconds`` of processor time counts as wrong. The process starts when it is first
    needed.

    Raises ImportError if math-verify is not installed.

    >>> with Math(extract="boxed") as math:
    ...     math.verdict(r"So it is \boxed{0.5}.", r"\frac{1}{2}"), math.verdict("So it is 0.5", "1/2")
    (1.0, 0.0)
    """

    timeout_seconds: float = 5.0

    name: ClassVar[str] = "math"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._equivalence  # noqa: B018 - a missing package or wrong setting should be known now

    def check(self, questions: Sequence[Question]) -> None:
        reads = {gold: self._equivalence.reads(gold) for gold in {q.gold for q in questions} if gold is not None}
        refuse_questions(
            (q for q in questions if q.gold is None or not reads[q.gold]),
            "a number, words or LaTeX that math-verify can read",
            "correct it, drop those questions, or verify with exact",
        )

    def close(self) -> None:
        if held := self.__dict__.pop("_equivalence", None):
            held.close()

    @cached_property
    def _equivalence(self) -> MathVerify:
        return MathVerify(self.timeout_seconds)

    def _same(self, answer: str, gold: str) -> bool:
        return self._equivalence.same(answer, gold)
