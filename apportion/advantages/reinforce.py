"""REINFORCE with a baseline fixed before the rollouts, and SPO and REINFORCE++, which have one scale for the batch.

Reference: R. J. Williams, "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning",
Machine Learning 8 (1992). J. Hu, J. K. Liu, H. Xu, W. Shen, "REINFORCE++: Stabilizing Critic-Free Policy Optimization
with Global Normalization", arXiv 2501.03262 (2025). Z. Xu, Z. Ding, "Single-stream Policy Optimization", arXiv
2509.13232 (2025), for SPO. As in verl, REINFORCE++ normalises over tokens, so that long
rollouts count for more.

Note: the REINFORCE++ paper takes a KL penalty off each token's reward first; here, if there is one, it is in the loss.
Note: verl's REINFORCE++ with a baseline subtracts the token mean of the centred rewards again. It is 0 if all
completions are equally long; else it moves every advantage of the batch by one number, and groups of equal rewards off
0. We divide only, so that those stay at exactly 0, and equal verl up to that number. Groups of one, to which verl gives
their raw reward, get 0.
"""

import numpy as np
from numpy.typing import ArrayLike

from apportion.advantages.grouping import centred, column, flat
from apportion.checks import number_array
from apportion.types import LARGEST_REWARD, Floats

EPSILON = 1e-8
"""Added to the variance, as in verl."""


def reinforce(rewards: ArrayLike, group_ids: ArrayLike, *, baseline: ArrayLike) -> Floats:
    """Return r - baseline, [N], for a ``baseline`` [N]: a belief's mean, a history, one number for all.

    Unbiased for any baseline that does not depend on these rewards, however the counts were decided (Wald's identity:
    the *sum* over rollouts has expectation E[n_q] grad p_q). A single rollout and a group of equal rewards teach, too.

    >>> reinforce([1, 0, 1], [0, 0, 1], baseline=[0.25, 0.25, 0.5]).tolist()
    [0.75, -0.25, 0.5]
    """
    rewards, _ = flat(rewards, group_ids)
    return rewards - column("baseline", baseline, rewards)


def spo(rewards: ArrayLike, group_ids: ArrayLike, *, baseline: ArrayLike) -> Floats:
    """Return a = r - baseline, normalised over the batch: (a - mean(a)) / sqrt(variance(a) + 1e-8), [N].

    The variance is the sample one (n - 1). ``baseline`` [N] is fixed before the rollouts, in SPO by the tracker of
    ``apportion.baselines.SPO``. Groups are ignored, and single rollouts are the rule. The batch's own mean is
    subtracted and its own deviation divided by, so the estimate is only nearly a multiple of the gradient, as in
    ``reinforce_plus_plus``. Equal differences get exactly 0.

    >>> spo([1, 0, 1], [0, 1, 2], baseline=[0.25, 0.25, 0.5]).round(3).tolist()
    [0.801, -1.121, 0.32]
    """
    differences = reinforce(rewards, group_ids, baseline=baseline)
    return whiten(differences, np.ones_like(differences))


def reinforce_plus_plus(rewards: ArrayLike, group_ids: ArrayLike, *, tokens: ArrayLike) -> Floats:
    """Return rewards whitened over all tokens of the batch, [N]. ``tokens`` [N] are lengths; groups are ignored.

    >>> reinforce_plus_plus([1, 0, 0], [0, 0, 1], tokens=[4, 4, 8]).round(3).tolist()
    [1.677, -0.559, -0.559]
    """
    rewards, _ = flat(rewards, group_ids)
    return whiten(rewards, column("tokens", tokens, rewards))


def reinforce_plus_plus_baseline(rewards: ArrayLike, group_ids: ArrayLike, *, tokens: ArrayLike) -> Floats:
    """Return r - mean within each group, over the standard deviation of that over all tokens of the batch, [N].

    >>> reinforce_plus_plus_baseline([1, 0, 1, 1], [0, 0, 1, 1], tokens=[4, 4, 4, 4]).round(3).tolist()
    [1.369, -1.369, 0.0, 0.0]
    """
    _, _, differences = centred(rewards, group_ids)
    _, deviation = moments(differences, column("tokens", tokens, differences))
    return differences / deviation


def whiten(values: ArrayLike, weights: ArrayLike) -> Floats:
    """Return (values - mean) / sqrt(variance + 1e-8): 0 where the weight is 0, exactly 0 if all values are equal.

    ``weights`` are how often each value counts: a mask [N, T] of tokens, or the number of tokens [N] of each rollout.
    With a mask it equals verl's ``masked_whiten`` within the mask.

    >>> whiten([[1.0, 3.0, 9.0]], [[1, 1, 0]]).round(3).tolist(), whiten([1.0, 3.0], [3, 1]).round(3).tolist()
    ([[-0.707, 0.707, 0.0]], [-0.5, 1.5])
    """
    differences, deviation = moments(values, weights)
    return differences / deviation


def moments(values: ArrayLike, weights: ArrayLike) -> tuple[Floats, float]:
    """Return differences from the weighted mean, 0 where the weight is 0, and sqrt(variance + 1e-8), n - 1 for n."""
    values, weights = number_array("values", values), number_array("weights", weights)
    if values.shape != weights.shape or not ((weights >= 0) & np.isfinite(weights)).all():
        raise ValueError(
            f"weights must be at least 0, one for each of {values.shape} values, got {weights.shape}; "
            "give a mask or numbers of tokens"
        )
    counted, total = weights > 0, weights.sum()
    bad = values[counted & ~(np.abs(values) <= LARGEST_REWARD)]
    if bad.size:
        raise ValueError(
            f"values must be finite and at most {LARGEST_REWARD:g} in size, got {bad[0]}; "
            "drop them or give them weight 0"
        )
    # The first value is subtracted first, so that equal values leave exactly 0 in spite of rounding.
    shifted = np.where(counted, values - values[counted][:1].sum(), 0.0)
    differences = np.where(counted, shifted - (shifted * weights).sum() / max(total, 1.0), 0.0)
    variance = (differences**2 * weights).sum() / max(total - 1.0, 1.0)
    return differences, float(np.sqrt(variance + EPSILON))
