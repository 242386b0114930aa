"""Recorded answers to vote counts: streams of answers, with one or many questions, as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from apportion.types import Counts

Stream = Sequence[str | None]
"""The answers to one question, in the order of their sampling; None where a sample holds no answer."""


def coded(stream: Stream) -> tuple[list[str], Counts]:
    """The distinct answers in order of first appearance, and each sample's place among them, [T]; -1 for None.

    >>> coded(["7", None, "9", "7"])[0], coded(["7", None, "9", "7"])[1].tolist()
    (['7', '9'], [0, -1, 1, 0])
    """
    places: dict[str, int] = {}
    codes = [-1 if answer is None else places.setdefault(answer, len(places)) for answer in stream]
    return list(places), np.array(codes, np.int64)


def counted(codes: Counts, answers: int) -> Counts:
    """Votes [..., T, K] for ``answers`` = K answers after each sample, from ``codes`` [..., T]; K at least 1.

    >>> counted(np.array([0, -1, 1, 0]), 2).tolist()
    [[1, 0], [1, 0], [1, 1], [2, 1]]
    """
    one_hot = codes[..., None] == np.arange(max(answers, 1))
    votes: Counts = one_hot.cumsum(axis=-2)
    return votes
