"""Explore, then commit: a few pilots for every prompt, and all further rollouts at once if their outcomes differ.

The name is that of the bandit literature (A. Garivier, E. Kaufmann, T. Lattimore, "On Explore-Then-Commit Strategies",
arXiv 1605.08988). Two pilots and 32 rollouts are the control that the conformal stopping of the package trl-cgrpo is
compared with. Unlike Pilot-Commit it needs no fresh prompts, no success rate between bounds and no binary rewards.

Note: a mixed prompt has ``high / pilots`` times the rollouts of the others. Under a loss that weighs tokens equally
(TRL's default, verl's token-mean) it has as many times their weight, and that is where the gain is. Under a mean over
prompts it loses: an even split of as many rollouts has a smaller variance. docs/cite.md has both, for two pilots, as
``cgrpo_alike``.
Note: a prompt with success probability p is committed to with probability 1 - p^k - (1 - p)^k, k pilots. Its gradient
is scaled by about this factor, so prompts of middle difficulty count for more.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apportion.allocators.base import Allocator, Size
from apportion.allocators.dapo import check_tolerance, mixed
from apportion.types import Batch, Plan


@dataclass(frozen=True, kw_only=True)
class ExploreThenCommit(Allocator):
    """``pilots`` rollouts of every prompt, and ``high`` in all for those whose pilots differ; binary or graded rewards.

    It works from the first epoch on, because it knows prompts by their pilots alone.

    Args:
        pilots: rollouts of every prompt at first, at least 2.
        high: rollouts of a prompt whose pilots differ, pilots included.
        tolerance: pilots differ if the standard deviation of their outcomes is above this; a verdict counts as 1 or 0.

    >>> from apportion import Prompt, Rollout
    >>> allocator = ExploreThenCommit(pilots=2, high=8)
    >>> batch = allocator.start([Prompt("a"), Prompt("b")])
    >>> batch = batch.add(allocator.plan(batch), [[Rollout(True), Rollout(False)], [Rollout(False)] * 2])
    >>> allocator.plan(batch).counts.tolist()
    [6, 0]
    """

    pilots: int = 4
    high: int = 32
    tolerance: float = 0.0

    name: ClassVar[str] = "explore_then_commit"
    separable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.pilots <= self.high:
            raise ValueError(
                f"pilots must be from 2 to high for explore_then_commit, got {self.pilots} and {self.high}; "
                "a single pilot is never mixed"
            )
        check_tolerance(self.name, self.tolerance)

    def size(self, prompts: int) -> Size:
        return Size(self.high * prompts, self.high * prompts, least=self.pilots * prompts, rounds=2)

    def plan(self, batch: Batch) -> Plan:
        most = np.where(mixed(batch, self.tolerance), self.high, self.pilots)
        return Plan(np.maximum(most - batch.asked, 0))
