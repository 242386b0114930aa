"""The exact verifier: the stated answer must be the text of gold."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from apportion.questions import Question
from apportion.verifiers.base import StatedAnswer, refuse_questions


@dataclass(frozen=True)
class Exact(StatedAnswer):
    """Right if the stated answer is the text of gold. White space around either is ignored.

    >>> Exact().verdict("The answer is Paris.", "Paris"), Exact().verdict("It is Paris", "Paris")
    (1.0, 0.0)
    """

    name: ClassVar[str] = "exact"

    def check(self, questions: Sequence[Question]) -> None:
        offenders = (question for question in questions if not (question.gold or "").strip())
        refuse_questions(offenders, "a text", "add it, or drop those questions")

    def _same(self, answer: str, gold: str) -> bool:
        return answer.strip() == gold.strip()
