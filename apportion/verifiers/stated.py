"""Verifiers of the stated answer: it must be the text of gold, have the words of gold, or be the letter of gold."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from apportion.answers import extract
from apportion.answers.retrieval import exact_match
from apportion.questions import Question
from apportion.verifiers.base import StatedAnswer, Verifier, refuse_questions

FONT = re.compile(r"\\(?:text|textbf|mathrm)\{([^{}]*)\}")
"""The commands that models put around words in a box."""


@dataclass(frozen=True)
class Exact(StatedAnswer):
    """Right if the stated answer is the text of gold. White space around either is ignored.

    >>> Exact().verdict("The answer is Paris.", "Paris"), Exact().verdict("It is Paris", "Paris")
    (1.0, 0.0)
    """

    name: ClassVar[str] = "exact"

    def _same(self, answer: str, gold: str) -> bool:
        return answer.strip() == gold.strip()


@dataclass(frozen=True)
class EM(StatedAnswer):
    r"""Right if the stated answer is gold by SQuAD's normalisation: case, punctuation and articles do not matter.

    >>> EM().verdict(r"So it is \boxed{\text{the Seine}}.", "Seine"), EM().verdict("The answer is Rhine.", "Seine")
    (1.0, 0.0)
    """

    name: ClassVar[str] = "em"

    def _same(self, answer: str, gold: str) -> bool:
        return exact_match(FONT.sub(r"\1", answer), [gold])


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
