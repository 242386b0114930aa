"""REINFORCE++ and its variant with a baseline: one scale for the whole batch, in place of one a group.

Reference: J. Hu, J. K. Liu, H. Xu, W. Shen, "REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global
Normalization", arXiv 2501.03262 (2025). As in verl, the batch is one of tokens, so that long rollouts count for more.

Note: the paper takes a KL penalty off each token's reward first; here, if there is one, it is in the loss.
Note: verl's variant with a baseline subtracts the token mean of the centred rewards again. It is 0 if all completions
are equally long; else it moves every advantage of the batch by one number, and groups of equal rewards off 0. We divide
only, so that those stay at exactly 0, and equal verl up to that number. Groups of one, to which verl gives their raw
reward, get 0.
"""

from __future__ import annotations

from numpy.typing import ArrayLike

from apportion.advantages.grouping import centred, column, flat
from apportion.advantages.whitening import moments, whiten
from apportion.types import Floats


def reinforce_plus_plus(rewards: ArrayLike, group_ids: ArrayLike, *, tokens: ArrayLike) -> Floats:
    """Rewards whitened over all tokens of the batch, [N]; groups are not looked at. ``tokens`` [N] are lengths.

    >>> reinforce_plus_plus([1, 0, 0], [0, 0, 1], tokens=[4, 4, 8]).round(3).tolist()
    [1.677, -0.559, -0.559]
    """
    rewards, _ = flat(rewards, group_ids)
    return whiten(rewards, column("tokens", tokens, rewards))


def reinforce_plus_plus_baseline(rewards: ArrayLike, group_ids: ArrayLike, *, tokens: ArrayLike) -> Floats:
    """r - mean within each group, over the standard deviation of that over all tokens of the batch, [N].

    >>> reinforce_plus_plus_baseline([1, 0, 1, 1], [0, 0, 1, 1], tokens=[4, 4, 4, 4]).round(3).tolist()
    [1.369, -1.369, 0.0, 0.0]
    """
    _, _, differences = centred(rewards, group_ids)
    _, deviation = moments(differences, column("tokens", tokens, differences))
    return differences / deviation
