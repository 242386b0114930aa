"""Baselines from the rewards of the batch itself, weighted by score norms (leave-one-out) or by lengths.

The baseline with the smallest variance is E[r |h|^2] / E[|h|^2], see ``apportion.baselines``. ``group_optimal`` and
``batch_optimal`` estimate it from other rollouts of the same batch, so they need no history. OPO estimates it from the
whole group with lengths in place of |h|^2, which its paper derives for scores of tokens that are equally long and
orthogonal.

Note: few others estimate the ratio poorly. In groups of 4 of policies over three answers, all outcomes enumerated,
``group_optimal`` has x1.20, x.88 and x1.06 of RLOO's variance at p = .1, .5 and .9. With two rollouts of each of the
three prompts ``batch_optimal`` has x.45 of it. In groups of 8 from a language model both are below RLOO, and
``batch_optimal`` is lower: see benchmarks/results/baselines.md.

References: E. Greensmith, P. L. Bartlett, J. Baxter, "Variance Reduction Techniques for Gradient Estimates in
Reinforcement Learning", JMLR 5 (2004); Y. Hao, L. Dong, X. Wu, S. Huang, Z. Chi, F. Wei, "On-Policy RL with Optimal
Reward Baseline", arXiv 2505.23585 (2025), for OPO.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apportion.advantages.grouping import column, flat
from apportion.types import Floats


def group_optimal(rewards: ArrayLike, group_ids: ArrayLike, *, score_norms: ArrayLike) -> Floats:
    """Return r - the mean of the *other* rewards of its group, weighted by ``score_norms`` [N], [N].

    A baseline does not see its own rollout, so the estimate is as unbiased as ``rloo``, which has equal weights. If the
    others' norms are all 0, their plain mean counts. A group of one gets 0.

    >>> group_optimal([1, 0, 0, 1], [7, 7, 7, 3], score_norms=[1, 1, 3, 1]).tolist()
    [1.0, -0.25, -0.5, 0.0]
    """
    values, ids = flat(rewards, group_ids)
    norms = _weights("score_norms", score_norms, values)
    advantages = np.zeros(values.shape)
    for own in _groups(ids):
        shifted = values[own] - values[own[0]]  # so that equal rewards leave exactly 0
        means = _ratio(_of_others(norms[own] * shifted), _of_others(norms[own]), (shifted.sum() - shifted) / _rest(own))
        advantages[own] = shifted - means if len(own) > 1 else 0.0
    return advantages


def batch_optimal(rewards: ArrayLike, group_ids: ArrayLike, *, score_norms: ArrayLike) -> Floats:
    """Return r - the mean of all rewards of *other* groups, weighted by ``score_norms`` [N], [N].

    One baseline for all prompts, but for the prompt's own rollouts. So groups of one have a gradient, and groups of
    equal rewards. It is unbiased if the other prompts' counts do not depend on this prompt's outcomes. If the others'
    norms are all 0, their plain mean counts. The only group of a batch gets 0.

    >>> batch_optimal([1, 0, 0, 1], [7, 7, 5, 3], score_norms=[1, 1, 3, 1]).round(3).tolist()
    [0.75, -0.25, -0.667, 0.8]
    """
    values, ids = flat(rewards, group_ids)
    norms = _weights("score_norms", score_norms, values)
    groups = _groups(ids)
    sizes = np.array([len(own) for own in groups])
    sums, products, weights = (
        np.array([each[own].sum() for own in groups]) for each in (values, norms * values, norms)
    )
    plain = _ratio(_of_others(sums), _of_others(sizes), 0.0)
    means = _ratio(_of_others(products), _of_others(weights), plain)
    advantages = np.zeros(values.shape)
    for own, mean in zip(groups, means, strict=True):
        advantages[own] = values[own] - mean if len(groups) > 1 else 0.0
    return advantages


def opo(rewards: ArrayLike, group_ids: ArrayLike, *, tokens: ArrayLike) -> Floats:
    """Return r - the mean of all rewards of its group, weighted by lengths ``tokens`` [N], [N]: OPO.

    The baseline sees its own rollout, so the estimate is biased. If all lengths are equal, it is ``dr_grpo``: (n - 1) /
    n of the gradient. Else the factor also depends on how lengths and rewards go together: with two rollouts of success
    p, lengths 1 if right and L if wrong, it is (L (1 - p) + p) / (L + 1) in place of 1 / 2. A group of one gets 0.

    >>> opo([1, 0, 0, 1], [7, 7, 7, 3], tokens=[2, 1, 1, 9]).tolist()
    [0.5, -0.5, -0.5, 0.0]
    """
    values, ids = flat(rewards, group_ids)
    lengths = _weights("tokens", tokens, values)
    advantages = np.zeros(values.shape)
    for own in _groups(ids):
        shifted = values[own] - values[own[0]]
        advantages[own] = shifted - _ratio((lengths[own] * shifted).sum(), lengths[own].sum(), shifted.mean())
    return advantages


def _weights(name: str, values: ArrayLike, rewards: Floats) -> Floats:
    """Return the column ``values`` [N]. Raise ValueError for a weight below 0."""
    weights = column(name, values, rewards)
    if (weights < 0).any():
        raise ValueError(f"{name} must be at least 0, got {weights.min()}; they weigh rewards")
    return weights


def _groups(ids: NDArray[np.generic]) -> list[NDArray[np.intp]]:
    """Return the indices of each group's rollouts, in order of the groups' first rollouts."""
    _, first, group, sizes = np.unique(ids, return_index=True, return_inverse=True, return_counts=True)
    members = np.split(np.argsort(group, kind="stable"), np.cumsum(sizes)[:-1])
    return [members[place] for place in np.argsort(first)]


def _of_others(values: Floats) -> Floats:
    """Return the sums [n] of all ``values`` [n] but one, added up without cancellation."""
    before, after = (np.concatenate([[0.0], np.cumsum(each)])[:-1] for each in (values, values[::-1]))
    return before + after[::-1]


def _ratio(sums: ArrayLike, weights: ArrayLike, otherwise: ArrayLike) -> Floats:
    """Return ``sums / weights``, and ``otherwise`` where the weight is 0."""
    positive = np.asarray(weights) > 0
    return np.where(positive, np.asarray(sums) / np.where(positive, weights, 1.0), otherwise)


def _rest(own: NDArray[np.intp]) -> int:
    return max(len(own) - 1, 1)
