"""REINFORCE with a baseline that was fixed before the rollouts: a belief's mean, a history, one number for all."""

from __future__ import annotations

from numpy.typing import ArrayLike

from apportion.advantages.grouping import column, flat
from apportion.types import Floats


def reinforce(rewards: ArrayLike, group_ids: ArrayLike, *, baseline: ArrayLike) -> Floats:
    """r - baseline, [N], for a ``baseline`` [N]. Reference: Williams 1992, Machine Learning 8.

    Unbiased for any baseline that does not depend on these rewards, however the counts were decided (Wald's identity:
    the *sum* over rollouts has expectation E[n_q] grad p_q). So a single rollout, and a group of equal rewards, teach.

    >>> reinforce([1, 0, 1], [0, 0, 1], baseline=[0.25, 0.25, 0.5]).tolist()
    [0.75, -0.25, 0.5]
    """
    rewards, _ = flat(rewards, group_ids)
    return rewards - column("baseline", baseline, rewards)
