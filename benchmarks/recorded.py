"""Recorded answers of language models, and random orders of them to replay.

The Game of 24 rows are vendored (``data/README.md`` has their source and licence). The other rows state no licence.
They are read from beside the repository, and left out if they are not there.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from apportion.types import Counts, Mask

VENDORED = Path(__file__).parent / "data" / "game24_votes.jsonl.gz"
VOTES = Path(__file__).parents[2] / "shared" / "data" / "votes" / "recorded_votes.parquet"
"""The file beside the repository with the rows that may not be copied into it: gsm8k and aime24."""


@dataclass(frozen=True)
class Question:
    """A question with its answers in the order of sampling, which of them are right, and their tokens if known."""

    answers: tuple[str, ...]
    right: Mapping[str, bool]
    tokens: tuple[int, ...] | None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Question:
        """Return the question of a row of a file. A ``ValueError`` says that equal answers are not equally right."""
        right = dict(zip(row["answers"], row["correct"], strict=True))
        if [right[answer] for answer in row["answers"]] != list(row["correct"]):
            raise ValueError(f"equal answers must be equally right, got others in question {row['question_id']}")
        return cls(tuple(row["answers"]), right, tuple(row["tokens"]) if row.get("tokens") else None)


def read_vendored(path: Path = VENDORED) -> list[dict[str, Any]]:
    """Return the rows of the Game of 24."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def read_votes(path: Path) -> list[dict[str, Any]]:
    """Return every row of the recorded votes at ``path``, or [] if there is no file. Needs pyarrow."""
    if not path.exists():
        return []
    from pyarrow.parquet import read_table  # noqa: PLC0415 - not needed without the file

    return list(read_table(path).to_pylist())


def read_datasets(path: Path = VOTES) -> dict[str, list[Question]]:
    """Return the questions of each data set: the vendored ones, and the others of ``path``."""
    vendored = read_vendored()
    mine = {row["dataset"] for row in vendored}
    return _grouped([*vendored, *(row for row in read_votes(path) if row["dataset"] not in mine)])


def _grouped(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Question]]:
    found: dict[str, list[Question]] = {}
    for row in rows:
        found.setdefault(row["dataset"], []).append(Question.of(row))
    return found


@dataclass(frozen=True)
class Streams:
    """Each of ``questions`` in ``orders`` random orders: S = questions x orders streams, grouped by question."""

    questions: tuple[Question, ...]
    orders: int
    answers: tuple[tuple[str, ...], ...]
    tokens: Counts | None
    """The tokens [S, T] up to each sample, or None."""

    @classmethod
    def draw(cls, questions: Iterable[Question], orders: int, seed: int) -> Streams:
        """Draw ``orders`` random orders of all samples of each question. The same seed gives the same orders."""
        rng, questions = np.random.default_rng(seed), tuple(questions)
        places = [[rng.permutation(len(question.answers)) for _ in range(orders)] for question in questions]
        pairs = [(question, order) for question, mine in zip(questions, places, strict=True) for order in mine]
        answers = tuple(tuple(question.answers[place] for place in order) for question, order in pairs)
        tokens = None
        if all(question.tokens for question in questions):
            tokens = np.array([np.asarray(question.tokens)[order] for question, order in pairs]).cumsum(axis=1)
        return cls(questions, orders, answers, tokens)

    def right(self, chosen: Iterable[str | None]) -> Mask:
        """Return whether each of the ``chosen`` [S] answers is right."""
        asked = (question for question in self.questions for _ in range(self.orders))
        pairs = zip(asked, chosen, strict=True)
        return np.array([answer is not None and question.right[answer] for question, answer in pairs])

    def by_question(self, values: np.ndarray) -> np.ndarray:
        """Return the means [Q] of ``values`` [S] over the orders of each question."""
        return np.asarray(values, float).reshape(len(self.questions), self.orders).mean(axis=1)
