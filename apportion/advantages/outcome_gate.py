"""The outcome gate: the shaping of a reward counts within groups of different outcomes only.

A reward r is often an outcome o, 1 or 0, plus a shaping term, such as one of length. A group of equal outcomes is dead
for the outcome, but a spread of r in it still trains: a phantom group. The gate puts other rewards in the place of r
before any estimator sees them. For rollout i of a group with rewards r [G] and outcomes o [G]:

    all outcomes of the group are equal    r'_i = o_i
    otherwise                              r'_i = r_i + mean of (o_j - r_j) over the rollouts j that i is compared with

With ``True`` these are all rollouts of the group. r' is r plus one number a group, so group-relative advantages are
those of r. With ``"order"`` they are those of the same outcome. Then r'_i = o_i + r_i - mean of r over them: shaping
orders rollouts of the same outcome, and moves no reward from one outcome to the other.

Both keep the mean of o in every group. So a group of equal outcomes has no advantage under a group-relative estimator.
Under a baseline from history it has o - b, and teaches its outcome alone. docs/shaped_rewards.md has the derivation.
"""

from dataclasses import replace
from typing import Literal

import numpy as np

from apportion.types import Group

OutcomeGate = bool | Literal["order"]


def gated(group: Group, gate: OutcomeGate) -> Group:
    """Return ``group`` with the rewards that train under ``gate``.

    If ``gate`` is False, the group is returned unchanged.

    Raises ValueError for a rollout without a verdict, ``Rollout.correct``.

    >>> from apportion.types import Prompt, Rollout
    >>> def rewards(gate, *pairs):
    ...     rollouts = tuple(Rollout(right, reward=reward) for right, reward in pairs)
    ...     return gated(Group(Prompt("1 + 1 ="), rollouts), gate).rewards.round(3).tolist()
    >>> rewards(True, (False, 0.25), (False, 0.0)), rewards(True, (True, 1.25), (False, 0.25), (False, 0.0))
    ([0.0, 0.0], [1.083, 0.083, -0.167])
    >>> rewards("order", (True, 1.25), (False, 0.25), (False, 0.0))
    [1.0, 0.125, -0.125]
    """
    if not gate or not group.rollouts:
        return group
    verdicts, rewards = [rollout.correct for rollout in group.rollouts], group.rewards
    if None in verdicts:
        raise ValueError(
            f"a rollout must have a verdict under outcome_gate={gate!r}, got the reward {rewards[verdicts.index(None)]}"
            f" alone for prompt {group.prompt.text!r:.80}; name what is above 0 for correct rollouts as verdict"
        )
    outcomes = np.array(verdicts, np.float64)
    if np.ptp(outcomes):
        compared = np.equal.outer(outcomes, outcomes) if gate == "order" else np.ones((len(outcomes),) * 2)
        outcomes = rewards + compared @ (outcomes - rewards) / compared.sum(axis=1)
    pairs = zip(group.rollouts, outcomes.tolist(), strict=True)
    return replace(group, rollouts=tuple(replace(rollout, reward=reward) for rollout, reward in pairs))
