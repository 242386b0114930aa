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
from tinker_cookbook.rl.train import Config
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset

from apportion.loop import collect_alone
from apportion.predictors.saved import SavedValues
from apportion.scheduler.scheduler import price_of
from apportion.tinker.dataset import AllocatedDataset
from apportion.tinker.groups import AllocatedGroup
from apportion.tinker.rewards import rewarded
from apportion.tinker.settings import TinkerAllocation
from apportion.types import Batch


class StreamedDataset(AllocatedDataset):
    """The problems of ``inner`` for the asynchronous loop. A group chooses its prompt and its size when it starts."""

    def __init__(self, inner: RLDataset, config: Config, allocation: TinkerAllocation) -> None:
        super().__init__(inner, config, allocation)
        self.price = price_of(allocation.allocator, self._catalogue)
        if self.price is not None:
            self.allocation = replace(allocation, allocator=self.price.rule)
        held = config.async_config.groups_per_batch * (config.async_config.max_steps_off_policy + 2)
        if allocation.selection is not None and held > self._distinct:
            raise ValueError(
                f"a selection needs {held} prompts for the groups of async_config that run or wait, got "
                f"{self._distinct}; lower max_steps_off_policy or groups_per_batch"
            )
        self._held: set[str] = set()
        self._unlearnt: list[Batch] = []
        self._completed = self._left = self._asked = 0

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        """Return a group for each problem of the batch."""
        builders = self.batches.get_batch(index)
        self._left, self._asked = self._left + len(builders), index + 1
        return [AllocatedGroup(builder, self._sample) for builder in builders]

    async def _sample(self, group: AllocatedGroup, policy: TinkerTokenCompleter) -> None:
        """Sample a prompt for ``group``: that of its builder, or the selection's next one whose outcome is known."""
        selection = self.allocation.selection
        if selection is not None:
            chosen = self._catalogue[selection.choose(1, self._held)[0]]
            self._held.add(chosen.id)
            group.builder = chosen.data
        prompt = self._prompt(group.builder, group)
        planner = self.price or self.allocation.allocator
        self._finish(group, await collect_alone(planner, prompt, partial(self._sampled, policy)))

    def _finish(self, group: AllocatedGroup, batch: Batch) -> None:
        """Leave in ``group`` what enters the loss. Learn, if it completes an update or the data set."""
        self._unlearnt.append(batch)
        self._left -= 1
        size = self.allocation.allocator.size(1)
        usual = self.price.rows if self.price else float(size.kept or size.asked or 1)
        for members in rewarded(self._trained(batch), self.allocation, usual):
            group.members = members
        totals = {reward + sum(step.reward for step in each.transitions) for each, reward, _ in group.members}
        trains = len(totals) > self.config.remove_constant_reward_groups
        self._completed += trains
        updated = trains and self._completed % self.config.async_config.groups_per_batch == 0
        if updated or (self._asked >= self.last and not self._left):
            whole, self._unlearnt = Batch.concatenate(self._unlearnt), []
            self._held.difference_update(prompt.id for prompt in whole.prompts)
            group.log(self._learn(whole, self._trained(whole)))

    def _learn(self, batch: Batch, groups: Sequence[Any]) -> dict[str, float]:
        if self.price is not None:
            self.price.forget()  # what it had read of beliefs that change now
        return super()._learn(batch, groups)

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "price": None if self.price is None else self.price.state_dict()}

    def _load(self, saved: SavedValues) -> None:
        super()._load(saved)
        if self.price is not None:
            self.price.load_state_dict(saved.state("price"))
