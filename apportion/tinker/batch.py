"""One batch of the training loop: an allocator plans its rounds, and each of its places gets a finished group.

The training loop runs all groups of a batch at once. The first one starts a task that samples for all of them by
``apportion.loop.collect_async``, and every group waits for that task. So there is nothing to agree on between groups:
they end together, with a result or with the same error.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field

from tinker_cookbook.completers import TinkerTokenCompleter
from tinker_cookbook.rl.rollout_limits import TerminationRewardPolicy
from tinker_cookbook.rl.rollout_strategy import RolloutStrategy
from tinker_cookbook.rl.rollouts import do_group_rollout_and_filter_constant_reward
from tinker_cookbook.rl.types import RolloutError, TrajectoryGroup

from apportion.loop import collect_async
from apportion.tinker.rewards import RewardedTrajectory, rollouts_of
from apportion.tinker.settings import TinkerAllocation
from apportion.types import Batch, Prompt, Rollout


@dataclass(frozen=True)
class RoundSettings:
    """How the rollouts of a round run: the user's strategy for errors, and the rewards of rollouts cut by limits."""

    strategy: RolloutStrategy
    termination: TerminationRewardPolicy | None = None


@dataclass(frozen=True)
class PlacedGroup:
    """What one group of the training loop trains on: its prompt, its members, and the errors of its rollouts."""

    prompt: Prompt
    members: Sequence[RewardedTrajectory]
    errors: Sequence[RolloutError]


@dataclass
class AllocatedBatch:
    """The rollouts of ``prompts``, whose ``data`` are their group builders.

    ``draw`` returns fresh prompts with ids that are not in the batch. ``finish`` returns what of the finished batch is
    trained on: members by prompt.
    """

    allocation: TinkerAllocation
    settings: RoundSettings
    prompts: Sequence[Prompt]
    places: int
    draw: Callable[[int, set[str]], list[Prompt]]
    finish: Callable[[Batch], list[tuple[Prompt, list[RewardedTrajectory]]]]
    groups: Mapping[int, PlacedGroup] = field(default_factory=dict)
    _errors: dict[int, list[RolloutError]] = field(default_factory=dict)
    _contexts: dict[int, Context] = field(default_factory=dict)
    _task: asyncio.Task[None] | None = None

    async def group(self, place: int, policy: TinkerTokenCompleter) -> PlacedGroup | None:
        """Return the finished group of ``place``; None if the batch has none for it. Cancelling it ends the batch."""
        self._contexts[place] = copy_context()  # the cookbook logs by context, one for each group
        if self._task is None:
            self._task = asyncio.create_task(self._collect(policy))
        try:
            await asyncio.shield(self._task)
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait([self._task])
            raise
        return self.groups.get(place)

    async def _collect(self, policy: TinkerTokenCompleter) -> None:
        place_of = {id(prompt): place for place, prompt in enumerate(self.prompts)}
        held = {prompt.id for prompt in self.prompts}

        async def sample(prompt: Prompt, count: int) -> list[Rollout]:
            context = self._contexts.get(place_of.get(id(prompt), -1))
            rollouts, errors = await asyncio.create_task(
                sampled_round(self.allocation, self.settings, prompt, count, policy),
                context=None if context is None else context.copy(),
            )
            self._errors.setdefault(id(prompt), []).extend(errors)
            return rollouts

        def source(count: int) -> list[Prompt]:
            fresh = self.draw(count, held)
            held.update(prompt.id for prompt in fresh)
            return fresh

        failure: Exception | None = None
        try:
            batch = await collect_async(self.allocation.allocator, self.prompts, sample, source=source)
        except ExceptionGroup as errors:
            failure = _first(errors)
        if failure is not None:  # raised here, so that it keeps its own cause
            raise failure
        self.groups = self._placed(self.finish(batch), place_of)

    def _placed(
        self, trained: Sequence[tuple[Prompt, Sequence[RewardedTrajectory]]], place_of: Mapping[int, int]
    ) -> dict[int, PlacedGroup]:
        """Return the groups by place: that of their prompt, or for prompts that were drawn later, a free one."""
        if len(trained) > self.places:
            raise ValueError(
                f"{self.allocation.allocator.name} must train on at most {self.places} prompts, one for each group of "
                f"the batch, got {len(trained)}; keep fewer in groups(), or name their number as its target"
            )
        own = {place_of[id(prompt)] for prompt, _ in trained if id(prompt) in place_of}
        free = iter([place for place in range(self.places) if place not in own])
        return {
            place_of[id(prompt)] if id(prompt) in place_of else next(free): PlacedGroup(
                prompt, members, self._errors.get(id(prompt), ())
            )
            for prompt, members in trained
        }


async def sampled_round(
    allocation: TinkerAllocation, settings: RoundSettings, prompt: Prompt, count: int, policy: TinkerTokenCompleter
) -> tuple[list[Rollout], Sequence[RolloutError]]:
    """Return the rollouts of ``count`` environments, and errors. Those that failed, if tolerated, are missing."""
    group: TrajectoryGroup | None = await do_group_rollout_and_filter_constant_reward(
        policy.sampling_client,
        allocation.resize(prompt.data, count),
        max_tokens=policy.max_tokens,
        temperature=policy.temperature,
        do_remove_constant_reward_groups=False,
        strategy=settings.strategy,
        termination=settings.termination,
    )
    if group is None:
        return [], ()
    received, failed = len(group.trajectories_G), len(group.rollout_errors)
    if not received <= count <= received + failed:
        raise ValueError(
            f"a group builder that is resized to {count} must make {count} environments, got {received} rollouts "
            f"and {failed} errors from {type(prompt.data).__name__}; pass a resize that sets their number"
        )
    return rollouts_of(group, allocation), group.rollout_errors


def _first(errors: ExceptionGroup[Exception]) -> Exception:
    """Return the first exception in ``errors``, as the cookbook raises it, with a note about the others."""
    first, *others = _leaves(errors)
    if others:
        first.add_note(f"{len(others)} more failed in the same round of the batch, the first with {others[0]!r:.200}")
    return first


def _leaves(error: Exception) -> list[Exception]:
    if isinstance(error, ExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
