"""Recorded answers of language models, and random orders of them to replay.

The Game of 24 rows are vendored (``data/README.md`` has their source and licence). The other rows state no licence.
They are read from beside the repository, and left out if they are not there.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from apportion.types import Counts

VENDORED = Path(__file__).parent / "data" / "game24_votes.jsonl.gz"
VOTES = Path(__file__).parents[2] / "shared" / "data" / "votes" / "recorded_votes.parquet"
"""The file beside the repository with the rows that may not be copied into it: gsm8k and aime24."""


@dataclass(frozen=True)
class Question:
    """A question with its answers in the order of sampling, which of them are right, and their tokens.

    An answer is None if a sample has none. ``right`` is None if the right answer is unknown, as without gold.
    ``tokens`` is None if they are not recorded for every sample.
    """

    answers: tuple[str | None, ...]
    right: Mapping[str | None, bool] | None
    tokens: tuple[int, ...] | None

    @classmethod
    def of(cls, row):
        """Return the question of a row of a file. A ``ValueError`` says that equal answers are not equally right."""
        answers = tuple(row["answers"])
        right, tokens = _known(row, "correct", len(answers)), _known(row, "tokens", len(answers))
        if right is not None:
            by_answer = dict(zip(answers, right, strict=True))
            if [by_answer[answer] for answer in answers] != right:
                raise ValueError(f"equal answers must be equally right, got others in question {row['question_id']}")
        return cls(answers, None if right is None else by_answer, None if tokens is None else tuple(tokens))


def _known(row, column, samples):
    """Return the entry of ``column`` for each sample, or None if it is null, empty, or null for some samples."""
    found = row.get(column)
    if found is None or not len(found) or any(entry is None for entry in found):
        return None
    if len(found) != samples:
        raise ValueError(
            f"{column} must have an entry for each answer, got {len(found)} for {samples} in question "
            f"{row['question_id']}"
        )
    return list(found)


def read_vendored(path=VENDORED):
    """Return the rows of the Game of 24."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def read_votes(path):
    """Return every row of the recorded votes at ``path``, or [] if there is no file. Needs pyarrow."""
    if not path.exists():
        return []
    from pyarrow.parquet import read_table  # noqa: PLC0415 - not needed without the file

    return list(read_table(path).to_pylist())


def read_datasets(path=VOTES):
    """Return the questions of each data set: the vendored ones, and the others of ``path``."""
    vendored = read_vendored()
    mine = {row["dataset"] for row in vendored}
    return _grouped([*vendored, *(row for row in read_votes(path) if row["dataset"] not in mine)])


def _grouped(rows):
    found: dict[str, list[Question]] = {}
    for row in rows:
        found.setdefault(row["dataset"], []).append(Question.of(row))
    return found


@dataclass(frozen=True)
class Streams:
    """Each of ``questions`` in ``orders`` random orders: S = questions x orders streams, grouped by question."""

    questions: tuple[Question, ...]
    orders: int
    answers: tuple[tuple[str | None, ...], ...]
    tokens: Counts | None
    """The tokens [S, T] up to each sample, or None; a stream shorter than T keeps its last number."""

    @classmethod
    def draw(cls, questions, orders, seed):
        """Draw ``orders`` random orders of all samples of each question. The same seed gives the same orders."""
        rng, questions = np.random.default_rng(seed), tuple(questions)
        places = [[rng.permutation(len(question.answers)) for _ in range(orders)] for question in questions]
        pairs = [(question, order) for question, mine in zip(questions, places, strict=True) for order in mine]
        answers = tuple(tuple(question.answers[place] for place in order) for question, order in pairs)
        tokens = None
        if all(question.tokens for question in questions):
            tokens = np.zeros((len(pairs), max(len(order) for _, order in pairs)), np.int64)
            for spent, (question, order) in zip(tokens, pairs, strict=True):
                spent[: len(order)] = np.asarray(question.tokens)[order]
            tokens = tokens.cumsum(axis=1)
        return cls(questions, orders, answers, tokens)

    def right(self, chosen):
        """Return whether each of the ``chosen`` [S] answers is right: 1, 0, or NaN if that is unknown."""
        asked = (question.right for question in self.questions for _ in range(self.orders))
        pairs = zip(asked, chosen, strict=True)
        return np.array(
            [np.nan if right is None else float(answer is not None and right[answer]) for right, answer in pairs]
        )

    def by_question(self, values):
        """Return the means [Q] of ``values`` [S] over the orders of each question."""
        return np.asarray(values, float).reshape(len(self.questions), self.orders).mean(axis=1)
