"""The cookbook's asynchronous loop with an allocator: each group is planned alone, when its slot is free.

The loop decides when a group starts, which weights sample it, and when it is trained. The rule decides how many
rollouts it gets, alone or by a price (``allocators.spending.price``). What finished groups taught is learnt in one step
for as many as an update trains. A state is saved then, before the loop can have trained so many.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tinker_cookbook.completers import TinkerTokenCompleter
from tinker_cookbook.rl.train import AsyncConfig
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, RolloutError

from apportion.loop import collect_alone
from apportion.predictors.saved import SavedValues
from apportion.scheduler.scheduler import plans_prompts_alone, price_of
from apportion.tinker.batch import PlacedGroup, RoundSettings, sampled_round
from apportion.tinker.checkpoints import StateFiles
from apportion.tinker.dataset import AllocatedDataset, with_metrics
from apportion.tinker.groups import AllocatedGroup
from apportion.tinker.rewards import RewardedTrajectory, rewarded
from apportion.tinker.settings import TinkerAllocation
from apportion.types import Batch, Prompt, Rollout

WHOLE_BATCH = ("batch_optimal", "reinforce_plus_plus")
"""Estimators that compare the rollouts of a batch."""


def check_streamed(allocation: TinkerAllocation) -> None:
    """Raise ValueError for an allocation that compares the groups of a batch."""
    if not plans_prompts_alone(allocation.allocator):
        raise ValueError(
            f"async_config must be None with {allocation.allocator.name}, which compares the prompts of a batch; leave "
            "it out, or take a rule that is separable or has a price, such as VIP or HORA"
        )
    if allocation.trained_estimator in WHOLE_BATCH:
        raise ValueError(
            f"async_config must be None with the estimator {allocation.trained_estimator}, which compares the rollouts "
            "of a batch; leave it out, or take another estimator"
        )


class StreamedDataset(AllocatedDataset):
    """The problems of ``inner`` for the asynchronous loop. A group chooses its prompt and its size when it starts."""

    def __init__(
        self,
        inner: RLDataset,
        epochs: int,
        allocation: TinkerAllocation,
        settings: RoundSettings,
        states: StateFiles,
        asynchronous: AsyncConfig,
        drops_constant: bool,
    ) -> None:
        super().__init__(inner, epochs, allocation, settings, states)
        rule, self.groups = self.allocation.allocator, asynchronous.groups_per_batch
        self.price = price_of(rule, self._catalogue)
        if self.price is not None:
            self.allocation = replace(allocation, allocator=self.price.rule)
        held = self.groups * (asynchronous.max_steps_off_policy + 2)
        if allocation.selection is not None and held > self._distinct:
            raise ValueError(
                f"a selection needs {held} prompts for the groups of async_config that run or wait, got "
                f"{self._distinct}; lower max_steps_off_policy or groups_per_batch"
            )
        self._drops = drops_constant
        self._held: set[str] = set()
        self._unlearnt: list[Batch] = []
        self._completed = self._left = 0
        self._ended = False

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        """Return a group for each problem of the batch."""
        builders = self.batches.get_batch(index)
        self._left += len(builders)
        self._ended = index + 1 >= self.states.last
        return [AllocatedGroup(partial(self._group, builder)) for builder in builders]

    async def _group(self, builder: EnvGroupBuilder, policy: TinkerTokenCompleter) -> PlacedGroup | None:
        """Sample a group; None if nothing of it enters the loss."""
        errors = list[RolloutError]()

        async def sample(prompt: Prompt, count: int) -> list[Rollout]:
            rollouts, failed = await sampled_round(self.allocation, self.settings, prompt, count, policy)
            errors.extend(failed)
            return rollouts

        prompt = self._next(builder)
        batch = await collect_alone(self.price or self.allocation.allocator, prompt, sample)
        members = self._finished(batch)
        return PlacedGroup(prompt, members, errors) if members else None

    def _next(self, builder: EnvGroupBuilder) -> Prompt:
        """Return the prompt of ``builder``, or the selection's next one whose outcome is not awaited."""
        if self.allocation.selection is None:
            return self._prompt(builder)
        prompt = self._catalogue[self.allocation.selection.choose(1, self._held)[0]]
        self._held.add(prompt.id)
        return prompt

    def _finished(self, batch: Batch) -> list[RewardedTrajectory]:
        """Return what of a finished group enters the loss. Learn, if it completes an update or the data set."""
        self._unlearnt.append(batch)
        self._left -= 1
        groups = [group for group in self.allocation.allocator.groups(batch) if group.keep.any()]
        members = rewarded(groups, self.allocation, self._average())[0] if groups else []
        totals = {reward + sum(step.reward for step in each.transitions) for each, reward, _ in members}
        trains = bool(members) and not (self._drops and len(totals) == 1)
        self._completed += trains
        if (trains and self._completed % self.groups == 0) or (self._ended and not self._left):
            metrics = self._learn()
            return with_metrics(members, metrics) if members else []
        return members

    def _average(self) -> float:
        """Return the rollouts that a prompt is expected to train on."""
        size = self.allocation.allocator.size(1)
        return self.price.rows if self.price else float(size.kept or size.asked or 1)

    def _learn(self) -> dict[str, float]:
        """Learn from the groups that finished since the last time, and save. Return the metrics of them."""
        batch, self._unlearnt = Batch.concatenate(self._unlearnt), []
        metrics = self._metrics(batch, [g for g in self.allocation.allocator.groups(batch) if g.keep.any()])
        self.allocation.observe(batch)
        self._held.difference_update(prompt.id for prompt in batch.prompts)
        if self.price is not None:
            self.price.forget()
        self.step += 1
        self.states.save(self.step, self._state())
        return metrics

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "price": None if self.price is None else self.price.state_dict()}

    def _load(self, saved: SavedValues) -> None:
        super()._load(saved)
        if self.price is not None:
            self.price.load_state_dict(saved.state("price"))
