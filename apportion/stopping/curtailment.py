"""Lossless curtailment: stop once no further samples can change the majority at ``max_samples``.

With R samples left, the leader with v_1 votes is safe from a rival with v_j where v_j + R < v_1, and also where they
are equal and the leader appeared first, for ties go to the first. An answer not seen yet is a rival with no votes.
Combined with another rule it never costs a sample and never loses agreement with the full vote: where it stops first,
the answer is the full vote's.

Reference: curtailed sampling, Wald 1947, "Sequential Analysis".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apportion.stopping.base import CountRule, Rule, leader
from apportion.types import Counts, Mask


@dataclass(frozen=True)
class Curtailment(CountRule):
    """Stops when the leader can no longer be overtaken by ``max_samples``.

    >>> rule = Curtailment()
    >>> rule.enough(np.array([[4, 2], [5, 2]]), np.array([6, 7]), max_samples=10).tolist()
    [False, True]
    """

    name: ClassVar[str] = "curtailment"

    def enough(self, votes: Counts, samples: Counts, max_samples: int) -> Mask:
        """Whether the present leader wins, whatever the samples left."""
        place = leader(votes)[..., None]
        rivals = votes + (np.arange(votes.shape[-1]) < place)  # one that appeared before the leader wins a tie
        np.put_along_axis(rivals, place, 0, axis=-1)  # stands for the answers not seen yet
        safe: Mask = rivals.max(axis=-1) + (max_samples - samples) <= votes.max(axis=-1)
        return safe


@dataclass(frozen=True)
class Curtailed(Rule):
    """Another rule, and curtailment: stops where either does. Built by ``curtail=True``, not by name."""

    rule: Rule

    name: ClassVar[str] = "curtailed"

    def check(self, max_samples: int) -> None:
        """As the rule inside."""
        self.rule.check(max_samples)

    def stops(self, votes: Counts, max_samples: int) -> Mask:
        """Where either stops."""
        return self.rule.stops(votes, max_samples) | Curtailment().stops(votes, max_samples)

    def stops_now(self, votes: Counts, max_samples: int) -> Mask:
        """Whether either stops."""
        return Curtailment().stops_now(votes, max_samples) | self.rule.stops_now(votes, max_samples)

    def winner(self, votes: Counts, max_samples: int) -> Counts:
        """The inner rule's answer, which is the leader where only curtailment stops."""
        return self.rule.winner(votes, max_samples)

    def earliest(self, votes: Counts, max_samples: int) -> Counts:
        """The sooner of both."""
        return np.minimum(self.rule.earliest(votes, max_samples), Curtailment().earliest(votes, max_samples))
