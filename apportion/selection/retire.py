"""Retire and retest: shuffled epochs without the prompts that the policy has mastered, or cannot do yet.

References: D. Khatri et al., "The Art of Scaling Reinforcement Learning Compute for LLMs", arXiv 2510.13786 (2025),
which drops prompts with a pass rate of at least .9 for good; open-instruct's ``no_resampling_pass_rate``. A prompt may
be forgotten again, so it is tested again after a while.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from apportion.checks import check_least
from apportion.predictors.saved import SavedValues
from apportion.selection.base import NEVER, Column
from apportion.selection.shuffled import ShuffledEpochs
from apportion.types import Counts, Floats, Mask

LOST_TURNS = 4
"""Least number of turns that a retired prompt loses, one per pass through the data set."""


@dataclass(kw_only=True)
class Retire(ShuffledEpochs):
    """Takes the prompts in shuffled epochs, without those whose latest group was mastered, or hopeless if that is set.

    It explores by testing them again. If fewer prompts are left than a batch needs, the retired ones fill it.

    Args:
        threshold: share of right rollouts in a group, or mean reward without verdicts, from which on its prompt is
            retired.
        hopeless: the same from the other side: a prompt whose latest group had at most this share, or mean, rests as
            long. 0 rests prompts of which nothing was right. None, the default, rests none of them.
        retest_after: number of choices after which a retired prompt is taken again; None never does. Draws in the
            middle of a batch are choices, too. It loses four turns at least, because at few prompts a choice, or in a
            large data set, its next turn comes later than that.

    Note: no weight restores the mean over all prompts, because a retired prompt has no probability of being chosen.

    >>> from apportion.types import Prompt
    >>> selector = Retire(threshold=0.9)
    >>> selector.prepare([Prompt("a"), Prompt("b")])
    >>> selector.metrics()["retired"]
    0.0
    """

    threshold: float = 0.9
    hopeless: float | None = None
    retest_after: int | None = 100

    name: ClassVar[str] = "retire"
    columns: ClassVar[Mapping[str, Column]] = {
        "_retired": Column("retired", np.int64(NEVER), NEVER),
        "_since": Column("since", np.int64(0)),
    }
    _retired: Counts = field(init=False, repr=False, compare=False)
    _since: Counts = field(init=False, repr=False, compare=False)
    """For each prompt, the number of turns that all prompts had had when it was retired."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(self.threshold):
            raise ValueError(f"threshold must be finite, got {self.threshold}; it is a mean reward")
        if self.hopeless is not None and not -math.inf < self.hopeless < self.threshold:
            raise ValueError(
                f"hopeless must be finite and below the threshold of {self.threshold:g}, got {self.hopeless}; 0 rests "
                "prompts of which nothing was right"
            )
        check_least(self, "it counts steps, and None never tests again", retest_after=1)

    def metrics(self) -> dict[str, float]:
        found = super().metrics()
        return found | {"retired": float(self._resting().mean())} if found else found

    def _choose(self, allowed: Mask, count: int, generator: Generator) -> Counts:
        active = allowed & ~self._resting()
        first = super()._choose(active, min(int(active.sum()), count), generator)
        return np.append(first, super()._choose(allowed & ~active, count - len(first), generator))

    def _resting(self) -> Mask:
        retired = self._retired != NEVER
        if self.retest_after is None:
            return retired
        lost = (self._drawn - self._since) // max(1, len(self._ids))
        return retired & ((self._steps - self._retired < self.retest_after) | (lost < LOST_TURNS))

    def _learn(self, places: Counts, means: Floats) -> None:
        rests = (means >= self.threshold) | (means <= (-math.inf if self.hopeless is None else self.hopeless))
        self._retired[places], self._since[places] = np.where(rests, self._steps, NEVER), self._drawn

    def _restore_own(self, saved: SavedValues) -> None:
        saved.array("since", (None,), high=saved.count("drawn"), dtype=np.int64)
        super()._restore_own(saved)
