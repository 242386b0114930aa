"""What a reward function returned for one completion: a reward, or the reason for a failed rollout."""

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from numbers import Real
from typing import Any

from numpy.typing import ArrayLike

from apportion.predictors.score_norms import sampled_score_norm
from apportion.types import Needs, Rollout
from apportion.untrusted import shown

logger = logging.getLogger(__name__)

LARGEST = 3.4028234e38
"""The largest 32-bit number. Trainers hold rewards in 32 bits, in which a larger one is infinite."""

_failed = count(1)
"""Counts failed rollouts. Warnings are logged for number 1, 10, 100 and so on."""


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


def rollout_of(
    reward: object,
    needs: Needs,
    *,
    verdict: object = None,
    tokens: int | None = None,
    logprobs: ArrayLike | None = None,
    completion: Any = None,
    remedy: str = "use a predictor of graded rewards, such as empirical_bayes",
) -> Rollout | None:
    """Return the rollout with ``reward``, as ``needs`` says what is read of it; None if it failed.

    It failed if its reward or its ``verdict`` is no finite number. A warning counts those that have a reward. A
    verdict above 0 is right. Without one a reward of 1 is right, 0 and -1 are wrong, and any other has no verdict.
    ``logprobs`` [T] are those of the tokens that the policy wrote, for what reads score norms. Raises ValueError if
    these are read and there are none, and with the ``remedy`` if correct rollouts are counted and there is no verdict.

    >>> rollout_of(1.0, Needs()), rollout_of(0.5, Needs()), rollout_of(0.5, Needs(), verdict=0.0)
    (Rollout(correct=True, reward=1.0), Rollout(reward=0.5), Rollout(correct=False, reward=0.5))
    >>> rollout_of("yes", Needs()), rollout_of(1.0, Needs(), verdict=float("nan"))
    (None, None)
    """
    read, judged = read_reward(reward), read_reward(reward if verdict is None else verdict)
    if read.reward is None or judged.reward is None:
        if reward is not None:
            problem = read.problem or f"{judged.problem}, as its verdict"
            number = next(_failed)
            if str(number).strip("0") == "1":
                logger.warning(
                    "Rollouts have failed and are not trained on, %d in this process; each must have finite numbers, "
                    "the latest got %s",
                    number,
                    problem,
                )
        return None
    correct = None
    if verdict is not None:
        correct = judged.reward > 0
    elif are_verdicts([read.reward]):
        correct = read.reward == 1
    elif needs.binary:
        raise ValueError(
            f"rewards must be 0 or 1 where correct rollouts are counted, got {read.reward} without a verdict; {remedy}"
        )
    norm = None
    if needs.score_norms and logprobs is not None:
        norm = sampled_score_norm(logprobs)
    elif needs.score_norms:
        raise ValueError(
            "rollouts must have the log-probabilities of their sampled tokens where score norms are read, got none; "
            "have the engine return them, or use a baseline, a predictor and an estimator that read none"
        )
    return Rollout(correct, reward=read.reward, completion=completion, tokens=tokens, score_norm=norm)
