"""Answers: from the text of a completion to an answer that can be counted.

``extract`` reads the answer that a completion states. An ``Equivalence`` then decides which answers mean the same, so
that equal answers are one vote and an answer can be compared with gold. ``AnswerReader`` does both for trainers.
"""

from apportion.answers.equivalence import EQUIVALENCES, AnswerClasses, Equivalence, ExactMatch, merge_answers
from apportion.answers.extraction import EXTRACTORS, extract
from apportion.answers.mathematics import MathVerify
from apportion.answers.reader import AnswerReader

__all__ = [
    "EQUIVALENCES",
    "EXTRACTORS",
    "AnswerClasses",
    "AnswerReader",
    "Equivalence",
    "ExactMatch",
    "MathVerify",
    "extract",
    "merge_answers",
]
