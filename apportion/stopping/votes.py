"""Arrays of vote counts: from recorded answers to votes, and the leader and its rivals among them."""

from collections.abc import Sequence

import numpy as np

from apportion.types import Counts, Mask

Stream = Sequence[str | None]
"""The answers to one question, in the order in which they were sampled; None is a sample without an answer."""


def encode_answers(stream: Stream) -> tuple[list[str], Counts]:
    """Return the distinct answers in order of first appearance, and each sample's index among them, [T]; -1 for None.

    >>> answers, codes = encode_answers(["7", None, "9", "7"])
    >>> answers, codes.tolist()
    (['7', '9'], [0, -1, 1, 0])
    """
    indices: dict[str, int] = {}
    codes = [-1 if answer is None else indices.setdefault(answer, len(indices)) for answer in stream]
    return list(indices), np.array(codes, np.int64)


def count_votes(codes: Counts, answers: int) -> Counts:
    """Return the votes [..., T, K] for K = ``answers`` answers after each sample, from ``codes`` [..., T].

    A code of -1 is not a vote. K is at least 1, even if ``answers`` is 0.

    >>> count_votes(np.array([0, -1, 1, 0]), 2).tolist()
    [[1, 0], [1, 0], [1, 1], [2, 1]]
    """
    one_hot = codes[..., None] == np.arange(max(answers, 1))
    return one_hot.cumsum(axis=-2)


def leader(votes: Counts) -> Counts:
    """Return the index of the leader, [...], in ``votes`` [..., K]; the first of those that tie."""
    return votes.argmax(axis=-1)


def top_two(votes: Counts) -> tuple[Counts, Counts]:
    """Return the votes of the leader and of the runner-up, [...] each, from ``votes`` [..., K]; 0 if there is none.

    >>> [int(n) for n in top_two(np.array([3, 1, 3]))], [int(n) for n in top_two(np.array([4]))]
    ([3, 3], [4, 0])
    """
    return votes.max(axis=-1), rival_votes(votes).max(axis=-1)


def rival_votes(votes: Counts) -> Counts:
    """Return ``votes`` [..., K] with the leader's set to 0.

    >>> rival_votes(np.array([[3, 1, 3], [0, 2, 1]])).tolist()
    [[0, 1, 3], [0, 0, 1]]
    """
    return np.where(np.arange(votes.shape[-1]) == leader(votes)[..., None], 0, votes)


def extend_for_leader(votes: Counts, more: int) -> Counts:
    """Return the votes [..., ``more``, K] after each of ``more`` further samples that all vote for the present leader.

    ``votes`` [..., T, K] are those so far. If T is 0, the first answer leads.

    >>> extend_for_leader(np.array([[[1, 0], [1, 1], [1, 2]]]), 2).tolist()
    [[[1, 3], [1, 4]]]
    """
    last = votes[..., -1, :] if votes.shape[-2] else np.zeros((*votes.shape[:-2], votes.shape[-1]), votes.dtype)
    one = np.arange(last.shape[-1]) == leader(last)[..., None]
    return last[..., None, :] + np.arange(1, more + 1)[:, None] * one[..., None, :]


def first_true(mask: Mask) -> Counts:
    """Return the position, counted from 1, of the first True along the last axis of ``mask`` [..., T]; T if none is."""
    return np.where(mask.any(axis=-1), mask.argmax(axis=-1) + 1, mask.shape[-1])
