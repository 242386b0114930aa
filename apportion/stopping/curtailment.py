"""Lossless curtailment: stop as soon as no further samples can change the majority at ``max_samples``.

With R samples left, the leader with v_1 votes is safe from a rival with v_j votes if v_j + R < v_1. It is also safe if
v_j + R = v_1 and the leader appeared first, because ties go to the first. An answer not seen yet is a rival with no
votes.

Combined with another rule, curtailment never takes more samples and never agrees less with the full vote, because where
it stops first the answer is that of the full vote.

Reference: curtailed sampling, Wald 1947, "Sequential Analysis".
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apportion.stopping.base import CountRule, Rule
from apportion.stopping.votes import leader
from apportion.types import Counts, Mask


@dataclass(frozen=True)
class Curtailment(CountRule):
    """Stops when no rival can overtake the leader by ``max_samples``.

    >>> rule = Curtailment()
    >>> rule.enough(np.array([[4, 2], [5, 2]]), np.array([6, 7]), max_samples=10).tolist()
    [False, True]
    """

    name: ClassVar[str] = "curtailment"

    def enough(self, votes: Counts, samples: Counts, max_samples: int) -> Mask:
        index = leader(votes)[..., None]
        rivals = votes + (np.arange(votes.shape[-1]) < index)  # an answer that appeared before the leader wins a tie
        np.put_along_axis(rivals, index, 0, axis=-1)  # the leader's entry stands for the answers not seen yet
        return rivals.max(axis=-1) + (max_samples - samples) <= votes.max(axis=-1)


@dataclass(frozen=True)
class Curtailed(Rule):
    """Another rule combined with curtailment; stops if either does. Built by ``curtail=True``, not by name."""

    rule: Rule

    name: ClassVar[str] = "curtailed"

    def check(self, max_samples: int) -> None:
        self.rule.check(max_samples)

    def stops(self, votes: Counts, max_samples: int) -> Mask:
        return self.rule.stops(votes, max_samples) | Curtailment().stops(votes, max_samples)

    def stops_now(self, votes: Counts, max_samples: int) -> Mask:
        return Curtailment().stops_now(votes, max_samples) | self.rule.stops_now(votes, max_samples)

    def winner(self, votes: Counts, max_samples: int) -> Counts:
        """Return the answer of ``rule``, which is the leader if only curtailment stops."""
        return self.rule.winner(votes, max_samples)

    def earliest(self, votes: Counts, max_samples: int) -> Counts:
        return np.minimum(self.rule.earliest(votes, max_samples), Curtailment().earliest(votes, max_samples))
