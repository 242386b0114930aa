"""What the estimators share: checked columns, and rewards less the mean of their group."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apportion.types import Counts, Floats


def flat(rewards: ArrayLike, group_ids: ArrayLike) -> tuple[Floats, NDArray[Any]]:
    """Rewards [N] and group ids [N] as arrays; a ValueError unless they are one number and one id a rollout."""
    values, ids = np.asarray(rewards, np.float64), np.asarray(group_ids)
    if values.ndim != 1 or values.shape != ids.shape:
        raise ValueError(
            f"rewards and group ids must be [N] each, got {values.shape} and {ids.shape}; flatten the groups first"
        )
    return values, ids


def column(name: str, values: ArrayLike, rewards: Floats) -> Floats:
    """``values`` as an array beside ``rewards`` [N]; a ValueError, with its ``name``, unless it is [N] and finite."""
    array = np.asarray(values, np.float64)
    if array.shape != rewards.shape or not np.isfinite(array).all():
        raise ValueError(
            f"{name} must be {list(rewards.shape)} and finite, got {array!r}; give one number a rollout, in their order"
        )
    return array


def centred(rewards: ArrayLike, group_ids: ArrayLike) -> tuple[Counts, Counts, Floats]:
    """Group index [N], group sizes [groups], and rewards less their group's mean [N]: exactly 0 where all are equal.

    >>> centred([3.0, 1.0, 0.1], ["b", "b", "a"])
    (array([1, 1, 0]), array([1, 2]), array([ 1., -1.,  0.]))
    """
    rewards, ids = flat(rewards, group_ids)
    _, group, sizes = np.unique(ids, return_inverse=True, return_counts=True)
    first = np.empty(len(sizes))
    first[group[::-1]] = rewards[::-1]
    shifted = rewards - first[group]
    means = np.bincount(group, shifted, minlength=len(sizes)) / sizes
    return group, sizes, shifted - means[group]
