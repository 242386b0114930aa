"""Advantages: flat rewards [N] and group ids [N] in, advantages [N] out; groups may be ragged.

Under every estimator a group of one, and a group of equal rewards, gets exactly 0: it has nothing to compare with.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from apportion.types import Counts, Floats

Estimator = Callable[[ArrayLike, ArrayLike], Floats]


def grpo(rewards: ArrayLike, group_ids: ArrayLike, epsilon: float = 1e-4) -> Floats:
    """(r - mean) / (standard deviation + epsilon) within each group, [N].

    The deviation is the sample one (n - 1), as in TRL and verl. Reference: Shao et al. 2024, arXiv 2402.03300, section
    4.1.2.

    >>> grpo([1, 0, 1, 1], [0, 0, 1, 1]).round(3).tolist()
    [0.707, -0.707, 0.0, 0.0]
    """
    group, sizes, centred = _centred(rewards, group_ids)
    variance = np.bincount(group, centred**2) / np.maximum(sizes - 1, 1)
    return centred / (np.sqrt(variance)[group] + epsilon)


def dr_grpo(rewards: ArrayLike, group_ids: ArrayLike) -> Floats:
    """r - mean within each group, [N]: GRPO without the division. Reference: Liu et al. 2025, arXiv 2503.20783.

    >>> dr_grpo([1, 0, 0, 0, 1], [0, 0, 0, 0, 1]).tolist()
    [0.75, -0.25, -0.25, -0.25, 0.0]
    """
    return _centred(rewards, group_ids)[2]


def rloo(rewards: ArrayLike, group_ids: ArrayLike) -> Floats:
    """r - mean of the *other* rewards of its group, [N]. Reference: Ahmadian et al. 2024, arXiv 2402.14740.

    >>> rloo([1, 0, 0, 1], [7, 7, 7, 3]).tolist()
    [1.0, -0.5, -0.5, 0.0]
    """
    group, sizes, centred = _centred(rewards, group_ids)
    return centred * (sizes / np.maximum(sizes - 1, 1))[group]


ESTIMATORS: dict[str, Estimator] = {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo}


def prompt_weights(group_ids: ArrayLike) -> Floats:
    """Weights [N] that turn a mean over rollouts into a mean over prompts: N / (P n_q) for each rollout of prompt q.

    A mean over the rollouts of ragged groups gives a prompt weight n_q. The estimators whose variance VIP analyses give
    every prompt 1 / P (arXiv 2602.01601, equation 4). On equal groups every weight is 1.

    >>> prompt_weights([0, 0, 0, 1]).round(3).tolist()
    [0.667, 0.667, 0.667, 2.0]
    """
    _, group, sizes = np.unique(np.asarray(group_ids), return_inverse=True, return_counts=True)
    return len(group) / (len(sizes) * sizes[group])


def _centred(rewards: ArrayLike, group_ids: ArrayLike) -> tuple[Counts, Counts, Floats]:
    """Group index [N], group sizes [groups], and rewards less their group's mean [N]: exactly 0 where all are equal."""
    rewards, ids = np.asarray(rewards, np.float64), np.asarray(group_ids)
    if rewards.ndim != 1 or rewards.shape != ids.shape:
        raise ValueError(
            f"rewards and group ids must be [N] each, got {rewards.shape} and {ids.shape}; flatten the groups first"
        )
    _, group, sizes = np.unique(ids, return_inverse=True, return_counts=True)
    first = np.empty(len(sizes))
    first[group[::-1]] = rewards[::-1]
    shifted = rewards - first[group]
    means = np.bincount(group, shifted, minlength=len(sizes)) / sizes
    return group, sizes, shifted - means[group]
