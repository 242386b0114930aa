"""Weights of rollouts in a batch's loss: whether prompts, rollouts or tokens count the same."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from apportion.types import Floats

Weighting = Literal["prompt", "rollout", "token"]
Reduction = Literal["sum", "mean"]


def prompt_weights(group_ids: ArrayLike) -> Floats:
    """Weights [N] that turn a mean over rollouts into a mean over prompts: N / (P n_q) for each rollout of prompt q.

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
    """Weights [N], of sum N, to multiply the advantages with before the mean over rollouts.

    "prompt" gives every prompt the same share of the batch's loss, N / (P n_q); "rollout" every rollout, 1; "token"
    every token. What the last takes depends on the ``reduction`` of a rollout's token terms. Under a "sum", divided by
    a number that all rollouts share, every token counts the same already, so "token" is 1 and equals "rollout". Under
    a "mean" over the rollout's own tokens it is N T_i / sum T, from ``tokens`` [N].

    "sum" is the lab's loss, TRL's ``loss_type`` "dr_grpo", "dapo" and "bnpo", and verl's ``loss_agg_mode`` "token-mean"
    and "seq-mean-token-sum(-norm)"; "mean" is TRL's "grpo" and verl's "seq-mean-token-mean".

    >>> rollout_weights([0, 0, 0, 1], "prompt").round(3).tolist()
    [0.667, 0.667, 0.667, 2.0]
    >>> rollout_weights([0, 0, 1], "token", [10, 20, 30], reduction="mean").tolist()
    [0.5, 1.0, 1.5]
    """
    if weighting not in get_args(Weighting) or reduction not in get_args(Reduction):
        raise ValueError(
            f"weighting must be one of {', '.join(get_args(Weighting))}, and reduction one of "
            f"{', '.join(get_args(Reduction))}, got {weighting!r} and {reduction!r}; check the spelling"
        )
    size = len(np.asarray(group_ids))
    if weighting == "prompt":
        return prompt_weights(group_ids)
    if weighting == "rollout" or reduction == "sum":
        return np.ones(size)
    lengths = np.zeros(0) if tokens is None else np.asarray(tokens, np.float64)
    if lengths.shape != (size,) or not ((lengths >= 0) & np.isfinite(lengths)).all() or (size and not lengths.any()):
        raise ValueError(
            f"tokens must be [{size}], at least 0 and not all 0, for 'token' weights of token means, got {tokens!r}; "
            "give the length of every completion"
        )
    return size * lengths / lengths.sum() if size else lengths
