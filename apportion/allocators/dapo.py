"""DAPO's dynamic sampling: draw fresh prompts until enough of them have both right and wrong rollouts.

Reference: Q. Yu et al., "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", arXiv 2503.14476 (2025),
section 3.2 and the constraint 0 < correct < G of its objective. Symbols of the paper used here: G rollouts of a prompt
(``rollouts_per_prompt``). A prompt whose rollouts are neither all right nor all wrong is called mixed here; the others
have no group-relative advantage and are dropped.

Note: graded rewards are not in the paper. A group of them is mixed if its standard deviation is above ``tolerance``,
the test that is asked for in OpenRLHF (issue 1270) and that verl's filter_groups makes with a tolerance of 0. A rollout
with a verdict counts as 1 or 0, as with filter_groups.metric=acc. So a group in which all are wrong is dropped, even if
rewards for format or length tell its rollouts apart.
Note: mixed prompts beyond ``target`` are paid for and not trained on, as in verl's recipe.
Note: the paper has no limit on draws. The cap of 10 is that of verl's recipe, which then raises an error; we train on
the mixed groups found and log a warning, because the rollouts are paid for.
Note: a dropped group has gradient 0, so dropping changes the scale and not the direction. The mean over the kept groups
is, in expectation, the mean over all drawn groups divided by P(mixed). The gradient of one prompt is 1 / P(mixed) as
large if it is kept, and it is kept with probability P(mixed).
"""

import logging
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apportion.allocators.base import Allocator, Size, check_rewards
from apportion.checks import check_least
from apportion.types import Batch, Group, Mask, Plan

logger = logging.getLogger(__name__)


def mixed(batch: Batch, tolerance: float = 0.0) -> Mask:
    """Return which prompts [P] have outcomes with a standard deviation above ``tolerance``.

    With verdicts and no tolerance these are the prompts that have both a correct and a wrong rollout.
    """
    return batch.spread > tolerance


def check_tolerance(rule: str, tolerance: float) -> None:
    """Raise ValueError unless ``tolerance`` of ``mixed`` is finite and not negative."""
    if not 0 <= tolerance < float("inf"):
        raise ValueError(f"tolerance must be finite and at least 0 for {rule}, got {tolerance}; 0 keeps any difference")


@dataclass(frozen=True, kw_only=True)
class DAPO(Allocator):
    """The same number of rollouts for every prompt, and fresh prompts until ``target`` are mixed.

    Rewards may be binary or graded. Drivers need a source of fresh prompts.

    Args:
        rollouts_per_prompt: G, at least 2; by default the number of the engine that trains, and 16 without one.
        target: mixed groups wanted, by default as many as the batch started with. verl's recipe starts with three
            times its target, so that one draw is often enough.
        draw: fresh prompts in each further draw, by default as many as the batch started with.
        max_draws: the most draws, including the first.
        tolerance: a group is mixed if the standard deviation of its outcomes is above this; by default if any two
            differ. A verdict counts as 1 or 0.

    >>> from apportion import Prompt, Rollout
    >>> allocator = DAPO(rollouts_per_prompt=2, target=1, draw=3)
    >>> batch = allocator.start([Prompt("a")])
    >>> batch = batch.add(allocator.plan(batch), [[Rollout(False)] * 2])
    >>> allocator.plan(batch)
    Plan(counts=array([0]), fresh=3)
    """

    rollouts_per_prompt: int | None = None
    target: int | None = None
    draw: int | None = None
    max_draws: int = 10
    tolerance: float = 0.0

    name: ClassVar[str] = "dapo"
    usual_rollouts: ClassVar[int] = 16
    adapts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, "a single rollout is never mixed", rollouts_per_prompt=2)
        check_least(self, "leave it out for the default", target=1, draw=1, max_draws=1)
        check_tolerance(self.name, self.tolerance)

    def size(self, prompts: int) -> Size:
        target = prompts if self.target is None else self.target
        further = prompts if self.draw is None else self.draw
        fresh = (self.max_draws - 1) * further
        asked, least = self._each * (prompts + fresh), self._each * prompts
        return Size(asked, self._each * target, fresh=fresh, least=least, rounds=self.max_draws)

    def plan(self, batch: Batch) -> Plan:
        counts = np.maximum(self._each - batch.asked, 0)
        enough = mixed(batch, self.tolerance).sum() >= self._wanted(batch)
        if counts.any() or enough or batch.round >= self.max_draws:
            return Plan(counts)
        return Plan(counts, fresh=batch.started if self.draw is None else self.draw)

    def final(self, batch: Batch, plan: Plan) -> Mask:
        """Return no prompt before the last draw. After it, return the prompts that stay if they are mixed."""
        if batch.round + 1 < self.max_draws:
            return np.zeros(len(batch.prompts), bool)
        candidates = mixed(batch, self.tolerance) | (plan.counts > 0)
        return ~candidates | (np.cumsum(candidates) <= self._wanted(batch))

    def groups(self, batch: Batch) -> list[Group]:
        """Return the first ``target`` mixed groups in prompt order, or fewer if the cap was hit."""
        check_rewards(self, batch)
        kept = np.flatnonzero(mixed(batch, self.tolerance))[: self._wanted(batch)]
        return [Group(batch.prompts[q], batch.rollouts[q]) for q in kept]

    def metrics(self, batch: Batch) -> dict[str, float]:
        """Return the numbers of ``mixed`` prompts and of ``draws``, and ``capped``: 1 if ``max_draws`` ended them."""
        found = float(mixed(batch, self.tolerance).sum())
        return {"mixed": found, "draws": float(batch.round), "capped": float(self._capped(batch))}

    def observe(self, batch: Batch) -> None:
        """Log a warning if the batch is smaller than wanted; learn nothing."""
        if self._capped(batch):
            logger.warning(
                "dapo found %d mixed groups of the %d wanted, among %d prompts in %d draws, the most allowed; "
                "raise max_draws or draw, or train on prompts that are neither solved nor hopeless",
                mixed(batch, self.tolerance).sum(),
                self._wanted(batch),
                len(batch.prompts),
                batch.round,
            )

    @property
    def _each(self) -> int:
        return self.usual_rollouts if self.rollouts_per_prompt is None else self.rollouts_per_prompt

    def _wanted(self, batch: Batch) -> int:
        return batch.started if self.target is None else self.target

    def _capped(self, batch: Batch) -> bool:
        return batch.round >= self.max_draws and bool(mixed(batch, self.tolerance).sum() < self._wanted(batch))
