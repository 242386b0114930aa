"""The two objects that the training loop handles: a group builder for each place, and the strategy that runs it."""

from collections.abc import Awaitable, Callable, Sequence

from tinker_cookbook.completers import TinkerTokenCompleter
from tinker_cookbook.exceptions import AllTrajectoriesFailedError
from tinker_cookbook.rl.rollout_strategy import RolloutResult, RolloutStrategy
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, Metrics, Trajectory

from apportion.tinker.batch import PlacedGroup


class AllocatedGroup(EnvGroupBuilder):  # type: ignore[misc]
    """A group that ``sample`` returns, or None. Its environments are made and cleaned up by the user's builders."""

    def __init__(self, sample: Callable[[TinkerTokenCompleter], Awaitable[PlacedGroup | None]]) -> None:
        self._sample = sample
        self._placed: PlacedGroup | None = None

    async def finish(self, policy: TinkerTokenCompleter) -> PlacedGroup | None:
        """Sample the group."""
        self._placed = await self._sample(policy)
        return self._placed

    async def make_envs(self) -> Sequence[Env]:
        """Raise ValueError: only ``AllocatedRollouts`` knows how many environments there are."""
        raise ValueError(
            "rollout_error_tolerance must be the strategy that allocated() set, got another; give yours to the "
            "configuration before allocated()"
        )

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        """Return the rewards with which the members enter the loss, and the metrics of their rounds."""
        return [(reward, metrics) for _, reward, metrics in self._placed.members] if self._placed else []

    def logging_tags(self) -> list[str]:
        """Return the tags of the user's builder."""
        return [] if self._placed is None else self._placed.prompt.data.logging_tags()


class AllocatedRollouts(RolloutStrategy):  # type: ignore[misc]
    """Runs groups of an allocation. All others, such as those of an evaluation, run by the user's ``inner``."""

    def __init__(self, inner: RolloutStrategy) -> None:
        self.inner, self.failed = inner, False

    def to_dict(self) -> dict[str, str]:
        """Return the user's strategy, for the cookbook's log of its configuration."""
        return {"inner": repr(self.inner)}

    @property
    def catches_group_errors(self) -> bool:
        """Whether a group with an error is skipped, as under ``inner``. An error of the allocation ends the run."""
        return self.inner.catches_group_errors and not self.failed

    async def execute(self, env_group_builder: EnvGroupBuilder, policy: TinkerTokenCompleter) -> RolloutResult:
        """Return the finished group. Raises AllTrajectoriesFailedError, so that it is left out, if there is none."""
        if not isinstance(env_group_builder, AllocatedGroup):
            return await self.inner.execute(env_group_builder, policy)
        try:
            placed = await env_group_builder.finish(policy)
        except Exception:
            self.failed = True
            raise
        if placed is None:
            raise AllTrajectoriesFailedError("A group is left out: no rollout of its prompt enters the loss")
        return RolloutResult([trajectory for trajectory, *_ in placed.members], (), list(placed.errors))
