"""The multiple-choice verifier: the chosen letter must be that of gold."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from apportion.answers import extract
from apportion.questions import Question
from apportion.verifiers.base import Verifier, refuse_questions


@dataclass(frozen=True)
class Choice(Verifier):
    """Right if the chosen letter, A to J in either case, is that of gold.

    >>> Choice().verdict("Answer: (c)", "C"), Choice().verdict("The answer is A dog.", "A")
    (1.0, 0.0)
    """

    name: ClassVar[str] = "choice"

    def answer(self, text: str) -> str | None:
        return extract(text, "choice")

    def verdict(self, text: str, gold: str | None) -> float | None:
        letter = self.answer(gold or "")
        return None if letter is None else float(self.answer(text) == letter)

    def check(self, questions: Sequence[Question]) -> None:
        refuse_questions(
            (question for question in questions if self.answer(question.gold or "") is None),
            "a letter from A to J",
            "give the letter of the right option, or verify with exact",
        )
