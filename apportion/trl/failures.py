"""What happens to completions without a reward: how often they are scored again, and when they end a run."""

import math
from dataclasses import dataclass
from typing import Self

from apportion.checks import check_integer, check_numbers
from apportion.untrusted import shown

MOST_SECONDS = 600.0
"""The longest wait before a further call of a reward function."""


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
        retries: how often a reward function is called again for completions that it failed, or gave None although it
            is the only one, or says whether they are correct.
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
        """Return the wait, in seconds, before retry ``attempt`` (from 0); at most ten minutes."""
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
