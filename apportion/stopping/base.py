"""The protocol of a stopping rule: one pure function from vote counts to stop or go on.

``votes`` [..., T, K] are the votes for each of K answers after each of T samples, answers in order of first appearance;
so row t - 1 is what is known after t samples. A sample without an answer is a sample and no vote. The leader is the
answer with the most votes; among equals the one that appeared first.

Rules look back only: entry t of ``stops`` reads rows up to t. So the same function replays recorded streams, all at
once, and tells a client or an allocator, which has the rows so far, whether to ask for more.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from apportion.types import Counts, Mask


class Rule(ABC):
    """When to stop sampling one question, given at most ``max_samples`` samples. A frozen dataclass of its settings."""

    name: ClassVar[str]

    @abstractmethod
    def stops(self, votes: Counts, max_samples: int) -> Mask:
        """Whether to stop after each sample, [..., T], from ``votes`` [..., T, K]; T is at most ``max_samples``.

        Sampling ends at ``max_samples`` whatever is returned for it.
        """

    def check(self, max_samples: int) -> None:  # noqa: B027 - most rules have nothing to refuse
        """Raises ValueError where the settings make no sense with so many samples at most."""

    def winner(self, votes: Counts, max_samples: int) -> Counts:
        """The answer that is chosen where sampling ends after each sample, as a place among the K answers, [..., T].

        It is the leader wherever the rule itself has not stopped: sampling may end for another reason.
        """
        return leader(votes)

    def stops_now(self, votes: Counts, max_samples: int) -> Mask:
        """Whether to stop after the last of the samples in ``votes`` [..., T, K], [...]."""
        now: Mask = self.stops(votes, max_samples)[..., -1]
        return now

    def earliest(self, votes: Counts, max_samples: int) -> Counts:
        """How many more samples are taken at the least, whatever they are, after those in ``votes`` [..., T, K], [...].

        Asking for so many at once costs no sample more than asking for one at a time. At least 1, and at most what is
        left of ``max_samples``. Here: were they all for the leader, which is what ends most rules soonest.

        Reference: Lee et al. 2025 (ConSol), arXiv 2503.17587, asks for its samples so.
        """
        taken = votes.shape[-2]
        ahead = np.concatenate([votes, for_the_leader(votes, max_samples - taken)], axis=-2)
        return first_true(self.stops(ahead, max_samples)[..., taken:])


class CountRule(Rule):
    """A rule that reads nothing but the present counts and how many samples they took."""

    @abstractmethod
    def enough(self, votes: Counts, samples: Counts, max_samples: int) -> Mask:
        """Whether ``votes`` [..., K] after ``samples`` [...] samples are enough, [...]."""

    def stops(self, votes: Counts, max_samples: int) -> Mask:
        """``enough`` after each sample."""
        samples = np.broadcast_to(np.arange(1, votes.shape[-2] + 1), votes.shape[:-1])
        return self.enough(votes, samples, max_samples)

    def stops_now(self, votes: Counts, max_samples: int) -> Mask:
        """``enough`` after the last sample."""
        return self.enough(votes[..., -1, :], np.array(votes.shape[-2]), max_samples)

    def earliest(self, votes: Counts, max_samples: int) -> Counts:
        """As for any rule, from the counts to come alone, and no further ahead than needed."""
        taken, answers = votes.shape[-2:]
        left = max_samples - taken
        ahead = for_the_leader(votes, left).reshape(math.prod(votes.shape[:-2]), left, answers)
        more, going, looked = np.full(len(ahead), left), np.arange(len(ahead)), 0
        while going.size and looked < left:
            upto = min(max(8, 2 * looked), left)
            samples = np.broadcast_to(taken + np.arange(looked + 1, upto + 1), (len(going), upto - looked))
            enough = self.enough(ahead[going, looked:upto], samples, max_samples)
            found = enough.any(axis=-1)
            more[going[found]] = looked + 1 + enough[found].argmax(axis=-1)
            going, looked = going[~found], upto
        return more.reshape(votes.shape[:-2])


def leader(votes: Counts) -> Counts:
    """The place of the leader, [...], among ``votes`` [..., K]."""
    places: Counts = votes.argmax(axis=-1)
    return places


def top_two(votes: Counts) -> tuple[Counts, Counts]:
    """The votes of the leader and of the runner-up, [...] each, of ``votes`` [..., K]; 0 where there is none.

    >>> [int(n) for n in top_two(np.array([3, 1, 3]))], [int(n) for n in top_two(np.array([4]))]
    ([3, 3], [4, 0])
    """
    return votes.max(axis=-1), rivals(votes).max(axis=-1)


def rivals(votes: Counts) -> Counts:
    """``votes`` [..., K] with none for the leader.

    >>> rivals(np.array([[3, 1, 3], [0, 2, 1]])).tolist()
    [[0, 1, 3], [0, 0, 1]]
    """
    others: Counts = np.where(np.arange(votes.shape[-1]) == leader(votes)[..., None], 0, votes)
    return others


def for_the_leader(votes: Counts, more: int) -> Counts:
    """The votes [..., ``more``, K] after each of so many further samples, all for the leader of ``votes`` [..., T, K].

    >>> for_the_leader(np.array([[[1, 0], [1, 1], [1, 2]]]), 2).tolist()
    [[[1, 3], [1, 4]]]
    """
    last = votes[..., -1, :] if votes.shape[-2] else np.zeros((*votes.shape[:-2], votes.shape[-1]), votes.dtype)
    one = np.arange(last.shape[-1]) == leader(last)[..., None]
    ahead: Counts = last[..., None, :] + np.arange(1, more + 1)[:, None] * one[..., None, :]
    return ahead


def first_true(mask: Mask) -> Counts:
    """The place, from 1, of the first True along the last axis of ``mask`` [..., T]; T where there is none."""
    place: Counts = np.where(mask.any(axis=-1), mask.argmax(axis=-1) + 1, mask.shape[-1])
    return place
