"""Generalised advantage estimation: PPO's advantages, from a critic's value of every token.

Reference: Schulman et al. 2016, arXiv 1506.02438, equation 16. PPO whitens the advantages afterwards, by ``whiten``.
"""

import numpy as np
from numpy.typing import ArrayLike

from apportion.checks import number_array
from apportion.types import Floats


def gae(rewards: ArrayLike, values: ArrayLike, mask: ArrayLike, gamma: float, lam: float) -> tuple[Floats, Floats]:
    """Return advantages [N, T] and returns [N, T], the critic's targets; both are 0 outside the mask.

    ``rewards`` [N, T] arrive with the token that earned them, ``values`` [N, T] are of the state before each token, and
    ``mask`` [N, T] marks the policy's own tokens. Tokens between those, such as a tool's output, are skipped: the next
    state is that of the policy's next token, and after the last one the value is 0. Rewards outside the mask are not
    read.

    >>> advantages, returns = gae([[0.0, 1.0, 0.0]], [[0.5, 0.5, 9.0]], [[1, 1, 0]], gamma=1.0, lam=0.5)
    >>> advantages.tolist(), returns.tolist()
    ([[0.25, 0.5, 0.0]], [[0.75, 1.0, 0.0]])
    """
    rewards, values = number_array("rewards", rewards), number_array("values", values)
    own = np.asarray(mask, bool)
    if rewards.ndim != 2 or not rewards.shape == values.shape == own.shape:
        raise ValueError(
            f"rewards, values and mask must be [N, T] each, got {rewards.shape}, {values.shape} and {own.shape}; "
            "pad the rollouts to one length"
        )
    for name, factor in (("gamma", gamma), ("lam", lam)):
        if not 0 <= factor <= 1:
            raise ValueError(f"{name} must be between 0 and 1, got {factor}; 1 discounts nothing")
    if not (np.isfinite(rewards[own]).all() and np.isfinite(values[own]).all()):
        raise ValueError("rewards and values must be finite inside the mask, got nan or inf; check reward and critic")
    advantages = np.zeros(rewards.shape)
    next_advantage, next_value = np.zeros(len(rewards)), np.zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        error = rewards[:, t] + gamma * next_value - values[:, t]
        next_advantage = np.where(own[:, t], error + gamma * lam * next_advantage, next_advantage)
        next_value = np.where(own[:, t], values[:, t], next_value)
        advantages[:, t] = np.where(own[:, t], next_advantage, 0.0)
    return advantages, np.where(own, advantages + values, 0.0)
