"""How many winners are right, from a few labelled questions, with a stated confidence.

Agreement with the full vote is not correctness: a model that errs in the same way every time agrees with itself. Only
labels tell. If the labelled questions are a random draw from all questions of the vote, the number of right winners
among them is hypergeometric. The bound is the smallest share of right winners among *all* finished questions under
which so many right ones are drawn with a probability above 1 - confidence.

It holds for the winners as they are, so stopping early is included, whatever rule stopped. It is never below
Clopper-Pearson's bound, which it approaches if few of many questions are labelled. Choosing among rules, or among
thresholds, by the same labels is not included.

Reference: Clopper and Pearson 1934, Biometrika 26(4), for the binomial; the finite population is the same inversion.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy.stats import beta, hypergeom

from apportion.answers import Equivalence, JudgeUsage, for_question, is_correct
from apportion.answers.equivalence import run_coroutine
from apportion.messages import prompt_hash, prompt_text
from apportion.questions import Question, read_golds
from apportion.rows import TableError
from apportion.untrusted import shown
from apportion.vote.ballot import Ballot
from apportion.vote.setup import Setup

CONFIDENCE = 0.95

_LETTER = re.compile(r"\W*[A-Ja-j]\W*")


@dataclass(frozen=True)
class RightWinners:
    """Of ``labelled`` questions, ``right`` have the right winner.

    Of all ``finished`` ones, a share of ``at_least`` has.

    ``at_least`` holds with probability ``confidence`` over the draw of the labelled questions.
    """

    labelled: int
    right: int
    finished: int
    at_least: float
    confidence: float = CONFIDENCE


def least_share(right: int, labelled: int, questions: int, confidence: float = CONFIDENCE) -> float:
    """Return the lower bound on the share of right winners among ``questions``, of which ``labelled`` were drawn.

    >>> round(least_share(48, 50, 1000), 3), least_share(50, 50, 50), least_share(0, 10, 100)
    (0.882, 1.0, 0.0)
    """
    possible = range(right, questions - (labelled - right) + 1)
    found = bisect_right(possible, 1 - confidence, key=lambda each: hypergeom.sf(right - 1, questions, each, labelled))
    return possible[found] / questions


def exact_interval(right: int, labelled: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return Clopper and Pearson's interval for the chance of a right winner on a further question.

    >>> [round(bound, 3) for bound in exact_interval(20, 20)]
    [0.832, 1.0]
    """
    tail = (1 - confidence) / 2
    low = beta.ppf(tail, right, labelled - right + 1) if right else 0.0
    high = beta.ppf(1 - tail, right + 1, labelled - right) if right < labelled else 1.0
    return float(low), float(high)


def read_labels(path: Path) -> dict[str, Question]:
    """Return the questions with right answers by their ids, from a file with id or prompt, and answer.

    Raises TableError for a file that cannot be read, or in which a question has no answer.
    """
    labels = read_golds(path)
    without = [id for id, label in labels.items() if not label.golds]
    if without or not labels:
        raise TableError(f"{path} must have an answer for each question, got none for {without[:1] or 'any'}; add it")
    return labels


def check_labels(labels: Mapping[str, Question], asked: Mapping[str, str]) -> None:
    """Raise ValueError if no label is of a question that was ``asked``, or one with its id is of another text.

    ``asked`` has the hash of each question's prompt by its id.
    """
    known = [label for id, label in labels.items() if id in asked]
    if not known:
        raise ValueError(
            f"labels must be of questions that are finished, got none of {len(labels)}; give the ids of the questions"
        )
    for label in known:
        if label.prompt != label.id and prompt_hash(label.prompt) != asked[label.id]:
            raise ValueError(
                f"a label must be of the question with its id, got another text for {shown(label.id)}: "
                f"{shown(label.prompt)}; correct the ids, or write the texts as the questions have them, or leave "
                "them out if the ids are right"
            )


def check_golds(questions: Iterable[Question], setup: Setup) -> None:
    """Raise ValueError for a gold answer that no answer can equal, such as a text where letters are read."""
    letters = setup.extract == "choice" and setup.equivalence in ("math", "exact", "phrase")
    for question in questions if letters else ():
        for gold in question.golds:
            if not _LETTER.fullmatch(gold):
                raise ValueError(
                    f"a right answer must be a letter from A to J under extract = choice, got {shown(gold)} for "
                    f"{shown(question.id)}; give the letter of the option"
                )


async def right_winners(
    ballots: Sequence[Ballot], labels: Mapping[str, Question], equivalence: Equivalence
) -> RightWinners:
    """Return how many winners are right, by the ``labels`` of a random draw of the questions.

    Raises ValueError as ``check_labels`` does, of those that are finished.
    """
    check_labels(labels, {ballot.id: ballot.question_hash for ballot in ballots})
    known = [ballot for ballot in ballots if ballot.id in labels]
    right = 0
    for ballot in known:
        label = labels[ballot.id]
        right += await is_correct(ballot.answer, label.golds, for_question(equivalence, prompt_text(label.prompt)))
    return RightWinners(len(known), right, len(ballots), least_share(right, len(known), len(ballots)))


def count_right(
    ballots: Sequence[Ballot], labels: Mapping[str, Question], setup: Setup
) -> tuple[RightWinners, JudgeUsage | None]:
    """Run ``right_winners`` with the equivalence of ``setup``, for callers without an event loop.

    Return also what its judge cost, if it is one.
    """

    check_golds(labels.values(), setup)

    async def count() -> tuple[RightWinners, JudgeUsage | None]:
        async with setup.open_equivalence() as equivalence:
            right = await right_winners(ballots, labels, equivalence)
            return right, getattr(equivalence, "usage", None)

    return run_coroutine(count())
