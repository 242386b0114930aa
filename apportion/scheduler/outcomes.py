"""What a reward function said of one completion: a reward, or why the rollout has failed."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real

from apportion.untrusted import shown

LARGEST = 3.4028234e38
"""The largest 32-bit number. Trainers hold rewards in 32 bits, in which a larger one is infinite."""


def are_verdicts(rewards: Iterable[float]) -> bool:
    """Return whether ``rewards`` are verdicts: 1 if right, and otherwise 0 or -1. NaN, which is no reward, is skipped.

    >>> are_verdicts([1.0, -1.0]), are_verdicts([0.0, 1.0]), are_verdicts([0.5])
    (True, True, False)
    """
    return all(reward in (-1.0, 0.0, 1.0) or math.isnan(reward) for reward in rewards)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finite ``reward``, or None and the ``problem`` with what was returned."""

    reward: float | None
    problem: str = ""


def read_reward(value: object) -> Outcome:
    """Return the reward in ``value``: a number, a bool, or an array or tensor of one. Anything else has failed.

    >>> read_reward(True), read_reward("yes").problem, read_reward(float("nan")).problem
    (Outcome(reward=1.0, problem=''), "text, 'yes'", 'NaN')
    """
    if value is None:
        return Outcome(None, "None")
    if callable(item := getattr(value, "item", None)):
        try:
            value = item()
        except (TypeError, ValueError, RuntimeError):
            return Outcome(None, f"several numbers, {shown(value)}")
    if isinstance(value, str | bytes):
        return Outcome(None, f"text, {shown(value)}")
    if not isinstance(value, Real | Decimal):
        return Outcome(None, f"a {type(value).__name__}, {shown(value)}")
    try:
        reward = float(value)
    except (OverflowError, ValueError):  # a whole number beyond the range, a signalling NaN
        reward = math.inf
    if math.isnan(reward):
        return Outcome(None, "NaN")
    return Outcome(reward) if abs(reward) <= LARGEST else Outcome(None, f"an infinite number, {shown(value)}")
