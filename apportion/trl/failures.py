"""Completions without a reward: how often they are scored again, and when a run ends because of them."""

import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor

from apportion.checks import check_integer, check_numbers
from apportion.trl.reading import RewardReader
from apportion.untrusted import shown

logger = logging.getLogger(__name__)

WINDOW = 256
"""The number of latest completions whose share of failures is bounded."""
MOST_SECONDS = 600.0
"""The longest wait before a further call of the reward functions."""
LEAST = 32
"""Failures among them below which no share ends a run, so that a few failures in its first step do not."""


class RewardsFailedError(RuntimeError):
    """Too many completions have no reward."""


@dataclass(frozen=True)
class FailedRewards:
    """What happens to completions without a reward. They are paid for, logged as ``failed`` and never trained on.

    A completion has no reward if all reward functions give it None, or if the allocator counts correct completions and
    the one that says whether it is correct does. Of several tasks it is the one that judges this prompt. It has none
    either if any function raises, or returns what is no finite number (``apportion.scheduler.outcomes.read_reward``). A
    function that raises before it ever returned ends the run.

    Args:
        retries: how often reward functions are called again for completions without a reward.
        wait: seconds before the first further call. Each next one waits twice as long.
        share: the run ends if more than this share of the latest 256 completions has no reward, and at least 32 of
            them; 1 is no bound.
        number: the run ends if more completions than this have no reward since it began; None is no bound.

    >>> FailedRewards.of("abort")
    FailedRewards(retries=0, wait=1.0, share=0.5, number=0)
    """

    retries: int = 0
    wait: float = 1.0
    share: float = 0.5
    number: int | None = None

    def __post_init__(self) -> None:
        check_numbers(self)
        check_integer("retries", self.retries, 0, "0 calls reward functions once")
        if not 0 <= self.wait < math.inf:
            raise ValueError(f"wait must be 0 or more seconds, got {self.wait}; the default waits 1 s, then 2, 4, ...")
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must be between 0 and 1, got {self.share}; 1 never ends a run")
        if self.number is not None:
            check_integer("number", self.number, 0, "leave it out for no bound")

    def seconds_before(self, attempt: int) -> float:
        """Return the seconds to wait before the further call of number ``attempt``, from 0; at most ten minutes."""
        return min(self.wait * 2.0 ** min(attempt, 60), MOST_SECONDS)

    @classmethod
    def of(cls, given: Self | str) -> "FailedRewards":
        """Return settings as they are, and those of a name in ``NAMED``. Raises ValueError for anything else."""
        if isinstance(given, cls):
            return given
        if not isinstance(given, str) or given not in NAMED:
            raise ValueError(
                f"failed_rewards must be one of {', '.join(NAMED)}, got {shown(given)}; or give FailedRewards()"
            )
        return NAMED[given]


NAMED = {
    "stop": FailedRewards(),
    "drop": FailedRewards(share=1.0),
    "retry": FailedRewards(retries=6),
    "abort": FailedRewards(number=0),
}
"""Settings by name: end when most fail (the default), never end, call again for a minute, end at the first failure."""


@dataclass
class FailureCount:
    """The failures of a run so far, for the bounds of ``allowed``; ``names`` are those of the reward functions [F].

    ``verdict`` is the column of the one that says whether a completion is correct, None if nobody needs to know.
    ``reader`` knows what was last wrong with each function, and which ones have returned.
    """

    allowed: FailedRewards
    names: Sequence[str]
    verdict: int | None = None
    reader: RewardReader = field(default_factory=RewardReader)
    number: int = 0
    _latest: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOW), repr=False)
    _beside: set[int] = field(default_factory=set, repr=False)
    _apart: set[int] = field(default_factory=set, repr=False)
    _told: bool = field(default=False, repr=False)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run must know: how many failed, and which functions returned, and judge other tasks."""
        return {
            "number": self.number,
            "returned": sorted(self.reader.returned),
            "beside": sorted(self._beside),
            "apart": sorted(self._apart),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the count of a run."""
        functions, self.number = range(len(self.names)), state.get("number", 0)
        self.reader.returned.update(state.get("returned", ()))
        self._beside, self._apart = (
            {function for function in functions if function in state.get(key, ())} for key in ("beside", "apart")
        )

    def failed(self, scores: Tensor) -> Tensor:
        """Return a mask [N] of the rows of ``scores`` [N, F] without a reward, or without a verdict that is needed.

        An infinite score is one of a function that failed.
        """
        failed, judged = scores.isnan().all(dim=1) | scores.isinf().any(dim=1), self.judged(scores)
        return failed if judged is None else failed | judged.isnan()

    def judged(self, scores: Tensor) -> Tensor | None:
        """Return the score [N] of the function that judges each row of ``scores`` [N, F]; None without a ``verdict``.

        It is the function ``verdict``, or that of another task: one that has given None where ``verdict`` judged, and
        never a score beside it. Functions that score beside it, such as one of the format, judge nothing.
        """
        if (verdict := self.verdict) is None:
            return None
        known = ~scores.isnan()
        for other in {*range(scores.size(1))} - {verdict}:
            if (known[:, other] & known[:, verdict]).any():
                self._beside.add(other)
            elif known[:, verdict].any():
                self._apart.add(other)
        column = scores[:, verdict].clone()
        for other in sorted(self._apart - self._beside):
            of_other = column.isnan() & known[:, other]
            column = column.where(~of_other, scores[:, other])
            if of_other.any() and not self._told:
                self._told = True
                logger.warning(
                    "%s gives None for some prompts; their completions are correct if %s is above 0",
                    self.names[verdict],
                    self.names[other],
                )
        return column

    def add(self, failed: Sequence[bool], scores: Tensor, prompts: Sequence[str]) -> None:
        """Count the completions of a round: whether they ``failed`` [N], ``scores`` [N, F], texts of ``prompts`` [N].

        Raises RewardsFailedError if too many have failed.
        """
        self._latest.extend(failed)
        self.number += sum(failed)
        recent, most = sum(self._latest), self.allowed.number
        beyond_share = recent >= LEAST and recent > self.allowed.share * len(self._latest)
        if not (any(failed) and (beyond_share or (most is not None and self.number > most))):
            return
        first = list(failed).index(True)
        because = ", ".join(
            f"{name} {'returned None' if math.isnan(score) else self.reader.problems.get(name, 'failed')}"
            for name, score in zip(self.names, scores[first].tolist(), strict=True)
            if not math.isfinite(score)
        )
        allowed = f"{self.allowed.share:.0%}" if beyond_share else most
        in_all = "" if beyond_share else f"{self.number} times in this run, "
        raise RewardsFailedError(
            f"completions must have rewards, got none for {recent} of the latest {len(self._latest)} (at most "
            f"{allowed} may have none); {because}, {in_all}for example for the prompt "
            f"{prompts[first]!r:.100}; correct it, or allow more with failed_rewards="
        )
