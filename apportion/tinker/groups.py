"""The two objects that the training loop handles: a group for each place of a batch, and the strategy that runs it."""

from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from typing import Self

from tinker_cookbook.completers import TinkerTokenCompleter
from tinker_cookbook.exceptions import AllTrajectoriesFailedError
from tinker_cookbook.rl.rollout_strategy import RolloutResult, RolloutStrategy
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, Metrics, RolloutError, Trajectory

from apportion.tinker.rewards import Episode


@dataclass(eq=False)
class AllocatedGroup(EnvGroupBuilder):  # type: ignore[misc]
    """A group as the loop trains on it. ``sample`` sets its ``members``; there are none if the group is left out.

    Their environments are made and cleaned up by the user's ``builder``. ``errors`` are those of its rounds, which are
    logged in ``context``: the cookbook logs by context, one for each group. One without ``sample`` is of a prompt that
    was drawn in the middle of a batch.
    """

    builder: EnvGroupBuilder
    sample: Callable[[Self, TinkerTokenCompleter], Awaitable[None]] | None
    members: list[Episode] = field(default_factory=list)
    errors: list[RolloutError] = field(default_factory=list)
    context: Context = field(default_factory=copy_context)

    def log(self, metrics: Metrics) -> None:
        """Log ``metrics`` of the batch with the first member, because the log has means over all that have them."""
        for first in self.members[:1]:
            self.members[0] = replace(first, metrics=first.metrics | metrics)

    async def make_envs(self) -> Sequence[Env]:
        """Raise ValueError, because only ``AllocatedRollouts`` knows the number of environments."""
        raise ValueError(
            "rollout_error_tolerance must be the strategy that allocated() set, got another; give yours to the "
            "configuration before allocated()"
        )

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        """Return the rewards with which the members enter the loss, and the metrics of their rounds."""
        return [(member.reward, member.metrics) for member in self.members]

    def logging_tags(self) -> list[str]:
        """Return the tags of the user's builder."""
        return list(self.builder.logging_tags())


class AllocatedRollouts(RolloutStrategy):  # type: ignore[misc]
    """Runs the groups of an allocation.

    Other groups, such as those of an evaluation, run under the user's ``inner``.
    """

    def __init__(self, inner: RolloutStrategy) -> None:
        self.inner, self.failed = inner, False

    def to_dict(self) -> dict[str, str]:
        """Return the user's strategy, for the cookbook's log of its configuration."""
        return {"inner": repr(self.inner)}

    @property
    def catches_group_errors(self) -> bool:
        """Whether a group with an error is skipped, as ``inner`` says.

        An error of the allocation itself ends the run.
        """
        return self.inner.catches_group_errors and not self.failed

    async def execute(self, env_group_builder: EnvGroupBuilder, policy: TinkerTokenCompleter) -> RolloutResult:
        """Return the finished group. Raises AllTrajectoriesFailedError if it has no members, so that it is left out."""
        group = env_group_builder
        if not (isinstance(group, AllocatedGroup) and group.sample):
            return await self.inner.execute(group, policy)
        group.context = copy_context()
        try:
            await group.sample(group, policy)
        except Exception:
            self.failed = True
            raise
        if not group.members:
            raise AllTrajectoriesFailedError("A group is left out: no rollout of its prompt enters the loss")
        return RolloutResult([member.trajectory for member in group.members], (), group.errors)
