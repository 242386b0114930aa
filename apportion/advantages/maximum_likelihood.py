"""MaxRL and fine-tuning on correct rollouts, which raise the log-likelihood of success, log p, instead of p.

Reference: F. Tajwar, G. Zeng et al., "Maximum Likelihood Reinforcement Learning", arXiv 2602.02710 (2026). log p is a
sum over k of -(1 - p)^k / k, so that its gradient is the sum of grad pass@k / k; a group of n rollouts gives the terms
up to k = n without bias, by the mean score of the successful ones (its Theorem 2). That is ``sft``; ``maxrl`` takes the
mean score of all off as a control variate.

Note: a group without success gets 0 from both, as in the paper. The control variate is then left out exactly where
nothing succeeded, which costs its term k = n: ``maxrl`` is unbiased for the terms up to n - 1, and ``sft`` up to n.
"""

import numpy as np
from numpy.typing import ArrayLike

from apportion.advantages.grouping import centred, flat
from apportion.types import Floats


def maxrl(rewards: ArrayLike, group_ids: ArrayLike) -> Floats:
    """Return (r - mean) / mean within each group, [N]; 0 for groups without success. Rewards must be at least 0.

    >>> maxrl([1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1]).tolist()
    [3.0, -1.0, -1.0, -1.0, 0.0, 0.0]
    """
    return _over_mean(centred(rewards, group_ids)[2], rewards, group_ids)


def sft(rewards: ArrayLike, group_ids: ArrayLike) -> Floats:
    """Return r / mean within each group, [N]; 0 for groups without success. Rewards must be at least 0.

    This is rejection-sampling fine-tuning: only rewarded rollouts are imitated. The mean advantage of every group with
    a success is 1, so that a group of correct rollouts only, even of one, carries a signal by design. Reference:
    Zelikman et al. 2022, arXiv 2203.14465.

    >>> sft([1, 0, 0, 0, 1, 0], [0, 0, 0, 0, 1, 2]).tolist()
    [4.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    """
    return _over_mean(flat(rewards, group_ids)[0], rewards, group_ids)


def _over_mean(values: Floats, rewards: ArrayLike, group_ids: ArrayLike) -> Floats:
    """Return ``values`` [N] divided by the mean reward of their group, 0 if that is 0."""
    rewards, ids = flat(rewards, group_ids)
    if (rewards < 0).any():
        raise ValueError(
            f"rewards must be at least 0 to be divided by their mean, got {rewards.min()}; "
            "shift them, or use rloo or grpo"
        )
    _, group, sizes = np.unique(ids, return_inverse=True, return_counts=True)
    means = (np.bincount(group, rewards) / sizes)[group]
    return np.divide(values, means, out=np.zeros_like(means), where=means > 0)
