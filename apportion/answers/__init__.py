"""Answers: from the text of a completion to an answer that can be counted.

An extractor reads the answer that a completion states. An ``Equivalence`` then decides which answers mean the same, so
that equal answers are one vote and an answer can be compared with gold. ``make_extractor`` and ``make_equivalence``
find them by the names in a configuration. ``AnswerReader`` does both for trainers.
"""

from apportion.answers.equivalence import AnswerClasses, Equivalence, ExactMatch, is_correct, merge_answers
from apportion.answers.extraction import EXTRACTORS, Extractor, extract
from apportion.answers.judge import JudgeEquivalence, JudgeError, JudgeUsage, JudgeVerdict
from apportion.answers.making import (
    EQUIVALENCES,
    NAMES,
    check_equivalence,
    for_question,
    make_equivalence,
    make_extractor,
    read_answer,
    read_answer_now,
)
from apportion.answers.mathematics import MathVerify
from apportion.answers.phrase import PhraseMatch
from apportion.answers.reader import AnswerReader
from apportion.answers.retrieval import exact_match, f1_at_k, precision_at_k, squad_form
from apportion.answers.user_code import AnswerFunctionError

__all__ = [
    "EQUIVALENCES",
    "EXTRACTORS",
    "NAMES",
    "AnswerClasses",
    "AnswerFunctionError",
    "AnswerReader",
    "Equivalence",
    "ExactMatch",
    "Extractor",
    "JudgeEquivalence",
    "JudgeError",
    "JudgeUsage",
    "JudgeVerdict",
    "MathVerify",
    "PhraseMatch",
    "check_equivalence",
    "exact_match",
    "extract",
    "f1_at_k",
    "for_question",
    "is_correct",
    "make_equivalence",
    "make_extractor",
    "merge_answers",
    "precision_at_k",
    "read_answer",
    "read_answer_now",
    "squad_form",
]
