"""The protocol of a stopping rule: a pure function from vote counts to a decision to stop.

``votes`` [..., T, K] are the votes for each of K answers after each of T samples; row t - 1 holds those after t
samples. Answers are numbered in order of first appearance. A sample without an answer is a sample but no vote. The
leader is the answer with the most votes; among equals, the one that appeared first.

A rule only looks back: entry t of ``stops`` depends on rows up to t. So the same function replays many recorded streams
at once, and tells a client or an allocator that has the rows so far whether to sample more.
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from apportion.stopping.votes import extend_for_leader, first_true, leader
from apportion.types import Counts, Mask


class Rule(ABC):
    """A rule that stops sampling one question, at ``max_samples`` at the latest: a frozen dataclass of its settings."""

    name: ClassVar[str]
    _bounded: ClassVar[str | None] = None
    """The setting that must be at most ``max_samples``, if there is one."""

    @abstractmethod
    def stops(self, votes: Counts, max_samples: int) -> Mask:
        """Return whether to stop after each sample, [..., T], from ``votes`` [..., T, K]; T is at most ``max_samples``.

        Sampling ends at ``max_samples`` even if the entry for it is False.
        """

    def check(self, max_samples: int) -> None:
        """Raise ValueError if the settings contradict ``max_samples``."""
        value = getattr(self, self._bounded) if self._bounded else None
        if value is not None and value > max_samples:
            raise ValueError(
                f"{self._bounded} must be at most max_samples, got {value} and {max_samples}; lower {self._bounded} or "
                "raise max_samples"
            )

    def winner(self, votes: Counts, max_samples: int) -> Counts:
        """Return the index of the answer that is chosen if sampling ends after each sample, [..., T].

        It is the leader if the rule itself has not stopped, because sampling may end for another reason.
        """
        return leader(votes)

    def stops_now(self, votes: Counts, max_samples: int) -> Mask:
        """Return whether to stop after the last sample of ``votes`` [..., T, K], [...]."""
        return self.stops(votes, max_samples)[..., -1]

    def earliest(self, votes: Counts, max_samples: int) -> Counts:
        """Return the minimum number of further samples before this rule can stop, whatever the answers, [...].

        ``votes`` [..., T, K] are those so far. The number is at least 1 and at most ``max_samples`` - T. Requesting so
        many samples at once wastes none. By default the further samples are all given to the leader, which is what lets
        most rules stop soonest.

        Reference: Lee et al. 2025 (ConSol), arXiv 2503.17587, requests its samples in this way.
        """
        taken = votes.shape[-2]
        ahead = np.concatenate([votes, extend_for_leader(votes, max_samples - taken)], axis=-2)
        return first_true(self.stops(ahead, max_samples)[..., taken:])


class CountRule(Rule):
    """A rule that reads only the present votes and the number of samples taken."""

    @abstractmethod
    def enough(self, votes: Counts, samples: Counts, max_samples: int) -> Mask:
        """Return whether to stop with ``votes`` [..., K] after ``samples`` [...] samples, [...]."""

    def stops(self, votes: Counts, max_samples: int) -> Mask:
        samples = np.broadcast_to(np.arange(1, votes.shape[-2] + 1), votes.shape[:-1])
        return self.enough(votes, samples, max_samples)

    def stops_now(self, votes: Counts, max_samples: int) -> Mask:
        return self.enough(votes[..., -1, :], np.array(votes.shape[-2]), max_samples)

    def earliest(self, votes: Counts, max_samples: int) -> Counts:
        """Return the same as ``Rule.earliest``, looking ahead in growing blocks and no further than needed."""
        taken, answers = votes.shape[-2:]
        left = max_samples - taken
        ahead = extend_for_leader(votes, left).reshape(math.prod(votes.shape[:-2]), left, answers)
        more, going, looked = np.full(len(ahead), left), np.arange(len(ahead)), 0
        while going.size and looked < left:
            upto = min(max(8, 2 * looked), left)
            samples = np.broadcast_to(taken + np.arange(looked + 1, upto + 1), (len(going), upto - looked))
            enough = self.enough(ahead[going, looked:upto], samples, max_samples)
            found = enough.any(axis=-1)
            more[going[found]] = looked + 1 + enough[found].argmax(axis=-1)
            going, looked = going[~found], upto
        return more.reshape(votes.shape[:-2])
