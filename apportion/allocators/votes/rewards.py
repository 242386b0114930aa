"""Rewards without labels: a reward in [0, 1] for each rollout, from the answers of a group and its pseudo-label.

Reference: Wang et al. 2025, "OptPO", arXiv 2512.02882, Section 3.3: R(Y_i; a*) = I[a_i = a*], or more generally any
R(Y_i; a*) in [0, 1].
"""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from apportion.checks import number_array
from apportion.types import Floats, Rollout

PseudoReward = Callable[[Sequence[Rollout], str], ArrayLike]
"""(rollouts of one prompt [G], its pseudo-label) -> rewards [G] in [0, 1]. The rollouts come without verdicts."""


def agreement(rollouts: Sequence[Rollout], label: str) -> Floats:
    """Return 1 for each answer that is the pseudo-label, else 0: [G].

    >>> agreement([Rollout(answer="4"), Rollout(answer="5"), Rollout()], "4").tolist()
    [1.0, 0.0, 0.0]
    """
    return np.array([rollout.answer == label for rollout in rollouts], np.float64)


def vote_share(rollouts: Sequence[Rollout], label: str) -> Floats:
    """Return the share of the group's votes for each rollout's own answer, [G]; 0 without an answer.

    >>> vote_share([Rollout(answer="4"), Rollout(answer="4"), Rollout(answer="5"), Rollout()], "4").round(3).tolist()
    [0.667, 0.667, 0.333, 0.0]
    """
    votes = Counter(rollout.answer for rollout in rollouts if rollout.answer is not None)
    return np.array([votes[rollout.answer] for rollout in rollouts], np.float64) / max(votes.total(), 1)  # type: ignore[index]


REWARDS: dict[str, PseudoReward] = {reward.__name__: reward for reward in (agreement, vote_share)}


def pseudo_rewards(reward: str | PseudoReward, rollouts: Sequence[Rollout], label: str) -> Floats:
    """Return the rewards [G] of ``rollouts``, by a name of ``REWARDS`` or a function. Raise ValueError outside [0, 1].

    >>> def digits(rollouts, label):
    ...     return [len(rollout.answer) for rollout in rollouts]
    >>> pseudo_rewards(digits, [Rollout(answer="7"), Rollout(answer="42")], "42")
    Traceback (most recent call last):
    ValueError: rewards must be between 0 and 1, got 2.0 for rollout 1; scale what digits returns
    """
    function = REWARDS[reward] if isinstance(reward, str) else reward
    given, name = function(rollouts, label), getattr(function, "__name__", repr(function))
    try:
        values = number_array("rewards", given)
    except ValueError as error:
        raise ValueError(f"rewards must be numbers, got {given!r}; change what {name} returns") from error
    if values.shape != (len(rollouts),):
        raise ValueError(
            f"rewards must be [{len(rollouts)}], one per rollout, got {values.shape}; change what {name} returns"
        )
    outside = np.flatnonzero(~((values >= 0) & (values <= 1)))
    if outside.size:
        raise ValueError(
            f"rewards must be between 0 and 1, got {values[outside[0]]} for rollout {outside[0]}; "
            f"scale what {name} returns"
        )
    return values


def check_reward(reward: str | PseudoReward) -> None:
    """Raise ValueError unless ``reward`` is a name of ``REWARDS`` or a function."""
    if not (reward in REWARDS if isinstance(reward, str) else callable(reward)):
        raise ValueError(f"reward must be one of {', '.join(REWARDS)}, or a function, got {reward!r}; name one")
