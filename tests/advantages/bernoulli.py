"""A policy of one parameter, and every way that its rollouts can turn out: expectations as finite sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from apportion.types import Counts, Floats


@dataclass(frozen=True)
class Outcomes:
    """One group for every outcome of a prompt, flat. The policy is Bernoulli(p), p the logistic of its parameter.

    The score of a rollout is then r - p, and grad p is p (1 - p).
    """

    p: float
    rewards: Floats
    group_ids: Counts
    rounds: Counts
    probability: Floats

    @property
    def sizes(self) -> Counts:
        """Rollouts of each outcome, [outcomes]."""
        return np.bincount(self.group_ids)

    @property
    def expected_count(self) -> float:
        """E[n]."""
        return float(self.probability @ self.sizes)

    @property
    def slope(self) -> float:
        """grad p."""
        return self.p * (1 - self.p)

    def expect(self, advantages: Floats, weighting: str) -> float:
        """Expectation of the sum over rollouts ("rollout") or of their mean ("prompt") of advantage times score."""
        totals = np.bincount(self.group_ids, advantages * (self.rewards - self.p))
        return float(self.probability @ (totals if weighting == "rollout" else totals / self.sizes))


def until_correct(p: float, stages: Sequence[int]) -> Outcomes:
    """AR3PO's rule: ``stages`` of so many rollouts, one after the other, until a stage has had a correct one.

    One stage is a fixed number of rollouts. Stages may be of one rollout.
    """
    histories = []
    for stage, count in enumerate(stages):
        past = (0,) * sum(stages[:stage])
        last = stage == len(stages) - 1
        histories += [past + new for new in product((0, 1), repeat=count) if any(new) or last]
    drawn = np.repeat(np.arange(len(stages)), stages)
    return Outcomes(
        p,
        rewards=np.concatenate([np.array(history, float) for history in histories]),
        group_ids=np.repeat(np.arange(len(histories)), [len(history) for history in histories]),
        rounds=np.concatenate([drawn[: len(history)] for history in histories]),
        probability=np.array([p ** sum(history) * (1 - p) ** (len(history) - sum(history)) for history in histories]),
    )
