"""The estimators by name, what each needs beside rewards and groups, and ``advantages_of`` groups."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from apportion.advantages.group_relative import dr_grpo, grpo, rloo
from apportion.advantages.maximum_likelihood import maxrl, sft
from apportion.advantages.reinforce import reinforce
from apportion.advantages.reinforce_plus_plus import reinforce_plus_plus, reinforce_plus_plus_baseline
from apportion.advantages.sequential import sequential
from apportion.types import Floats, Group

Estimator = Callable[..., Floats]
"""(rewards [N], group_ids [N], *, further columns [N]) -> advantages [N]."""

ESTIMATORS: dict[str, Estimator] = {
    estimator.__name__: estimator
    for estimator in (
        grpo,
        dr_grpo,
        rloo,
        sequential,
        reinforce,
        maxrl,
        sft,
        reinforce_plus_plus,
        reinforce_plus_plus_baseline,
    )
}

GROUP_RELATIVE = frozenset({"grpo", "dr_grpo", "rloo", "sequential", "maxrl", "reinforce_plus_plus_baseline"})
"""Estimators that give exactly 0 to every rollout of a group of one and of a group of equal rewards."""


def needs(name: str) -> tuple[str, ...]:
    """Columns [N] that an estimator takes beside rewards and group ids: its required keyword-only parameters.

    >>> needs("rloo"), needs("reinforce")
    ((), ('baseline',))
    """
    if name not in ESTIMATORS:
        raise ValueError(f"estimator must be one of {', '.join(ESTIMATORS)}, got {name!r}; check the spelling")
    parameters = inspect.signature(ESTIMATORS[name]).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty)


def advantages_of(groups: Sequence[Group], estimator: str = "rloo", *, baseline: ArrayLike | None = None) -> Floats:
    """Advantages [N] of all rollouts of the groups, in order, those outside ``keep`` too.

    ``baseline`` [groups], one number a group, goes to the estimators that take one; it must have been fixed before the
    rollouts. Lengths come from ``Rollout.tokens`` and rounds from ``Rollout.round``. Raises ValueError for an unknown
    estimator, for a column that it needs and a rollout lacks, and for a baseline that it would not read.

    >>> from apportion import Prompt, Rollout
    >>> group = Group(Prompt("1 + 1 ="), (Rollout(True), Rollout(False), Rollout(False)))
    >>> advantages_of([group]).tolist(), advantages_of([group], "reinforce", baseline=[0.25]).tolist()
    ([1.0, -0.5, -0.5], [0.75, -0.25, -0.25])
    """
    wanted = needs(estimator)
    if (baseline is not None) != ("baseline" in wanted):
        raise ValueError(
            f"estimator {estimator!r} {'needs a' if baseline is None else 'takes no'} baseline, got {baseline!r}; "
            f"{'pass one number a group, fixed before its rollouts' if baseline is None else 'leave it out'}"
        )
    sizes = [len(group.rollouts) for group in groups]
    rewards = np.concatenate([np.zeros(0), *(group.rewards for group in groups)])
    columns: dict[str, ArrayLike] = {}
    if "baseline" in wanted:
        columns["baseline"] = np.repeat(_one_a_group(baseline, groups), sizes)
    if "tokens" in wanted:
        columns["tokens"] = _tokens(groups, estimator)
    if "rounds" in wanted:
        columns["rounds"] = [rollout.round for group in groups for rollout in group.rollouts]
    return ESTIMATORS[estimator](rewards, np.repeat(np.arange(len(groups)), sizes), **columns)


def _one_a_group(baseline: ArrayLike | None, groups: Sequence[Group]) -> Floats:
    values = np.asarray(baseline, np.float64)
    if values.shape != (len(groups),):
        raise ValueError(
            f"baseline must be [{len(groups)}], one number a group, got {values.shape}; it is not one a rollout"
        )
    return values


def _tokens(groups: Sequence[Group], estimator: str) -> list[int]:
    lengths = []
    for group in groups:
        for i, rollout in enumerate(group.rollouts):
            if rollout.tokens is None:
                raise ValueError(
                    f"estimator {estimator!r} needs the length of every completion, got none for rollout {i} of prompt "
                    f"{group.prompt.text!r}; set Rollout.tokens"
                )
            lengths.append(rollout.tokens)
    return lengths
