"""Grouped rollouts: checked columns, centred rewards, and the weights of rollouts in the loss."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apportion.checks import check_choice, number_array
from apportion.types import LARGEST_REWARD, Counts, Floats, Group

Weighting = Literal["prompt", "rollout", "token"]
Reduction = Literal["sum", "mean"]


def flat(rewards: ArrayLike, group_ids: ArrayLike) -> tuple[Floats, NDArray[Any]]:
    """Return rewards [N] and group ids [N] as arrays. Raise ValueError unless they are flat and of one length.

    Rewards must be finite and at most ``LARGEST_REWARD`` in size.
    """
    values, ids = number_array("rewards", rewards), np.asarray(group_ids)
    if values.ndim != 1 or values.shape != ids.shape:
        raise ValueError(
            f"rewards and group ids must be [N] each, got {values.shape} and {ids.shape}; flatten the groups first"
        )
    bad = np.flatnonzero(~(np.abs(values) <= LARGEST_REWARD))
    if bad.size:
        raise ValueError(
            f"rewards must be finite and at most {LARGEST_REWARD:g} in size, got {values[bad[0]]} for rollout "
            f"{bad[0]}; drop the rollout or rescale the rewards"
        )
    return values, ids


def column(name: str, values: ArrayLike, rewards: Floats) -> Floats:
    """Return the column ``values`` as an array. Raise ValueError unless it is finite and [N] as ``rewards`` are."""
    array = number_array(name, values)
    if array.shape != rewards.shape or not np.isfinite(array).all():
        raise ValueError(
            f"{name} must be {list(rewards.shape)} and finite, got {array!r}; give one number a rollout, in their order"
        )
    return array


def centred(rewards: ArrayLike, group_ids: ArrayLike) -> tuple[Counts, Counts, Floats]:
    """Return group indices [N], group sizes [groups], and rewards minus their group's mean [N], exactly 0 if all equal.

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


def prompt_weights(group_ids: ArrayLike) -> Floats:
    """Return weights [N] that turn a mean over rollouts into a mean over prompts: N / (P n_q) for rollouts of prompt q.

    A mean over the rollouts of ragged groups gives a prompt weight n_q. The estimators whose variance VIP analyses give
    every prompt 1 / P (arXiv 2602.01601, equation 4). On equal groups every weight is 1.

    >>> prompt_weights([0, 0, 0, 1]).round(3).tolist()
    [0.667, 0.667, 0.667, 2.0]
    """
    _, group, sizes = np.unique(np.asarray(group_ids), return_inverse=True, return_counts=True)
    return len(group) / (len(sizes) * sizes[group])


def rollout_weights(
    group_ids: ArrayLike, weighting: Weighting, tokens: ArrayLike | None = None, *, reduction: Reduction = "sum"
) -> Floats:
    """Return weights [N], of sum N, to multiply the advantages with before the mean over rollouts.

    "prompt" gives every prompt the same share of the batch's loss, N / (P n_q); "rollout" gives every rollout the same
    share, 1; "token" every token. The weight of "token" depends on the loss's ``reduction`` over a rollout's tokens.
    After a "sum", divided by a number that all rollouts share, every token counts the same already: the weight is 1.
    After a "mean" over the rollout's own tokens it is N T_i / sum T, from ``tokens`` [N].

    "sum" is the lab's loss, TRL's ``loss_type`` "dr_grpo", "dapo" and "bnpo", and verl's ``loss_agg_mode`` "token-mean"
    and "seq-mean-token-sum(-norm)"; "mean" is TRL's "grpo" and verl's "seq-mean-token-mean".

    >>> rollout_weights([0, 0, 0, 1], "prompt").round(3).tolist()
    [0.667, 0.667, 0.667, 2.0]
    >>> rollout_weights([0, 0, 1], "token", [10, 20, 30], reduction="mean").tolist()
    [0.5, 1.0, 1.5]
    """
    check_choice("weighting", weighting, get_args(Weighting))
    check_choice("reduction", reduction, get_args(Reduction))
    size = len(np.asarray(group_ids))
    if weighting == "prompt":
        return prompt_weights(group_ids)
    if weighting == "rollout" or reduction == "sum":
        return np.ones(size)
    lengths = np.zeros(0) if tokens is None else number_array("tokens", tokens)
    if lengths.shape != (size,) or not ((lengths >= 0) & np.isfinite(lengths)).all() or (size and not lengths.any()):
        raise ValueError(
            f"tokens must be [{size}], at least 0 and not all 0, for 'token' weights of token means, got {tokens!r}; "
            "give the length of every completion"
        )
    return size * lengths / lengths.sum() if size else lengths


def loss_weights(
    groups: Sequence[Group],
    weighting: Weighting,
    importance: Floats | None = None,
    *,
    tokens: Floats | None = None,
    reduction: Reduction = "sum",
) -> Floats:
    """Return the loss weight of each rollout of ``groups``, [N], for a mean over the kept rollouts.

    Others have weight 0.

    ``importance`` [groups] multiplies the weights of each group, as those of a selection do. ``tokens`` [N] and
    ``reduction`` are those of ``rollout_weights``.

    >>> from apportion.types import Prompt, Rollout
    >>> pair, single = (Group(Prompt(text), (Rollout(True),) * n) for text, n in (("a", 2), ("b", 1)))
    >>> loss_weights([pair, single], "prompt").tolist()
    [0.75, 0.75, 1.5]
    """
    owner = np.repeat(np.arange(len(groups)), np.array([len(group.rollouts) for group in groups], np.int64))
    keep = np.concatenate([np.zeros(0, bool), *(group.keep for group in groups)])
    weights, lengths = np.zeros(len(keep)), None if tokens is None else tokens[keep]
    weights[keep] = rollout_weights(owner[keep], weighting, lengths, reduction=reduction)
    return weights if importance is None else weights * importance[owner]
