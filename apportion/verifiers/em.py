"""The verifier of exact match: the stated answer must have the words of gold."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from apportion.answers.retrieval import exact_match, squad_form
from apportion.questions import Question
from apportion.verifiers.base import StatedAnswer, refuse_questions

FONT = re.compile(r"\\(?:text|textbf|mathrm)\{([^{}]*)\}")
"""The commands that models put around words in a box."""


@dataclass(frozen=True)
class EM(StatedAnswer):
    r"""Right if the stated answer is gold by SQuAD's normalisation: case, punctuation and articles do not matter.

    >>> EM().verdict(r"So it is \boxed{\text{the Seine}}.", "Seine"), EM().verdict("The answer is Rhine.", "Seine")
    (1.0, 0.0)
    """

    name: ClassVar[str] = "em"

    def check(self, questions: Sequence[Question]) -> None:
        offenders = (question for question in questions if not squad_form(question.gold or ""))
        refuse_questions(offenders, "a text", "add it, or drop those questions")

    def _same(self, answer: str, gold: str) -> bool:
        return exact_match(FONT.sub(r"\1", answer), [gold])
