"""The user's data set under an allocator: its groups, in batches or alone, and what is learned from them.

The training loop runs all groups of a batch at once. The first one starts a task that samples for all of them by
``apportion.loop.collect_async``, and every group waits for that task. So there is nothing to agree on between groups:
they end together, with a result or with the same error.

The asynchronous loop decides when a group starts, which weights sample it, and when it is trained. The rule decides how
many rollouts it gets, alone or by a price (``allocators.spending.price``). What finished groups taught is learnt in one
step for as many as an update trains. A state is saved then, before the loop can have trained so many.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from tinker_cookbook.checkpoint_utils import get_last_checkpoint
from tinker_cookbook.completers import TinkerTokenCompleter
from tinker_cookbook.rl.dataset_utils import EpochCycledRLDataset
from tinker_cookbook.rl.rollouts import do_group_rollout_and_filter_constant_reward
from tinker_cookbook.rl.train import Config
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, TrajectoryGroup

from apportion.allocators.spending.price import Price
from apportion.engines.fresh_rows import FreshRows, draw_distinct
from apportion.engines.metrics import allocation_metrics, prefixed
from apportion.engines.saved_state import load_state, restoring
from apportion.loop import collect_alone, collect_async
from apportion.predictors.saved import SavedValues
from apportion.scheduler.decisions import check_draws
from apportion.scheduler.scheduler import price_of
from apportion.tinker.checkpoints import KIND, REMEDY, save, state_file
from apportion.tinker.groups import AllocatedGroup
from apportion.tinker.rewards import EarlierEpisode, rewarded, rollouts_of
from apportion.tinker.settings import TinkerAllocation
from apportion.types import Batch, Group, Prompt, Rollout


class AllocatedDataset(RLDataset):  # type: ignore[misc]
    """The batches of ``inner`` for the user's ``config``. Their groups are sized by the allocator, or by its ``price``.

    Batches are asked for in order, one at a time. ``inner`` must return the same problems for the same index.
    """

    price: Price | None = None

    def __init__(self, inner: RLDataset, config: Config, allocation: TinkerAllocation) -> None:
        self.config, self.allocation = config, allocation
        self.batches = EpochCycledRLDataset(inner, config.num_epochs)
        self.last = len(self) if config.max_steps is None else min(len(self), config.max_steps)
        self.step = self._drawn = 0
        predictor = getattr(allocation.allocator, "predictor", None)
        if predictor is not None and predictor.reads_texts:
            allocation.allocator.prepare(self._catalogue)
        if allocation.selection is not None:
            allocation.selection.prepare(self._catalogue, allocation.seed, predictor)

    def resume(self) -> None:
        """Restore the state beside the checkpoint that the loop resumes from, if there is one."""
        record = get_last_checkpoint(self.config.log_path)
        self.step = 0 if record is None else int(record.batch or 0)
        if self.step:
            path = state_file(self.config, self.step)
            state = load_state(path, KIND, remedy=REMEDY, records=(EarlierEpisode,))
            with restoring(path, REMEDY):
                self._load(SavedValues(state, KIND, list(self._state())))

    def __len__(self) -> int:
        return len(self.batches)

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        """Return a group for each prompt of the next batch. Raises ValueError if the index is not the next one."""
        if index != self.step:
            raise ValueError(
                f"batches must be asked for in order, each after the one before it is sampled, got {index} for "
                f"{self.step}; train by tinker_cookbook.rl.train.main"
            )
        builders, allocation = self.batches.get_batch(index), self.allocation
        if allocation.selection is not None:
            builders = [self._catalogue[row].data for row in allocation.selection.choose(len(builders))]
        check_draws(allocation.allocator, len(builders), lambda _: self._distinct)
        shared: list[asyncio.Task[None]] = []

        async def sample(group: AllocatedGroup, policy: TinkerTokenCompleter) -> None:
            if not shared:
                shared.append(asyncio.create_task(self._collect(prompts, places, policy)))
            await shared[0]  # cancelling a group ends the batch

        places = [AllocatedGroup(builder, sample) for builder in builders]
        prompts = [self._prompt(place.builder, place) for place in places]
        more = (getattr(allocation.allocator, "target", None) or 0) - len(places)
        places += [AllocatedGroup(builders[0], sample) for _ in range(more)]
        return places

    def _prompt(self, builder: EnvGroupBuilder, data: Any) -> Prompt:
        return replace(self.allocation.prompt_of(builder), data=data)

    @cached_property
    def _catalogue(self) -> list[Prompt]:
        """The prompts of an epoch, with their builders."""
        inner = self.batches.inner
        batches = map(inner.get_batch, range(len(inner)))
        return [self._prompt(builder, builder) for batch in batches for builder in batch]

    @cached_property
    def _distinct(self) -> int:
        return len({prompt.id for prompt in self._catalogue})

    def _draw(self, held: set[str], count: int) -> list[Prompt]:
        """Return ``count`` prompts for the middle of a batch, with ids that are not in ``held``, and put them there."""
        rows = self._catalogue
        if self.allocation.selection is not None:
            found = [rows[row] for row in self.allocation.selection.choose(count, held)]
        else:
            fresh = FreshRows(rows, self.allocation.seed)
            fresh.restore(self._drawn)
            found = draw_distinct(fresh, count, held, lambda prompt: prompt.id)
            self._drawn = fresh.drawn
        held.update(prompt.id for prompt in found)
        return [replace(prompt, data=AllocatedGroup(prompt.data, None)) for prompt in found]

    async def _collect(
        self, prompts: Sequence[Prompt], places: Sequence[AllocatedGroup], policy: TinkerTokenCompleter
    ) -> None:
        """Sample a batch and learn from it.

        Put what is trained on into ``places``; the first of them are the batch's own.
        """
        allocator, failure = self.allocation.allocator, None
        sample, source = partial(self._sampled, policy), partial(self._draw, {prompt.id for prompt in prompts})
        try:
            batch = await collect_async(allocator, prompts, sample, source=source)
        except ExceptionGroup as errors:
            failure, *others = errors.exceptions
            if others:
                failure.add_note(
                    f"{len(others)} more failed in the same round of the batch, the first with {others[0]!r:.200}"
                )
        if failure is not None:  # raised here, so that it keeps its own cause
            raise failure
        if not batch.asked.any():
            raise ValueError(
                f"{allocator.name} must plan rollouts for a batch of {len(prompts)} prompts, got none; raise its "
                "budget, or its minimum per prompt"
            )
        if len(groups := self._trained(batch)) > len(places):
            raise ValueError(
                f"{allocator.name} must train on at most {len(places)} prompts, one for each group of the batch, got "
                f"{len(groups)}; keep fewer in groups(), or name their number as its target"
            )
        members, metrics = rewarded(groups, self.allocation), self._learn(batch, groups)
        owners = {group.prompt.data: own for group, own in zip(groups, members, strict=True)}
        free = iter([place for place in places if place not in owners])
        for owner, own in owners.items():
            place = owner if owner.sample else next(free)  # a prompt that was drawn has no place of its own
            place.builder, place.errors, place.members = owner.builder, owner.errors, own
            place.log(metrics)

    async def _sampled(self, policy: TinkerTokenCompleter, prompt: Prompt, count: int) -> list[Rollout]:
        """Return the rollouts of ``count`` environments of ``prompt``. Those that failed, if tolerated, are missing."""
        owner: AllocatedGroup = prompt.data
        running = do_group_rollout_and_filter_constant_reward(
            policy.sampling_client,
            self.allocation.resize(owner.builder, count),
            max_tokens=policy.max_tokens,
            temperature=policy.temperature,
            do_remove_constant_reward_groups=False,
            strategy=self.config.effective_rollout_strategy(),
            termination=self.config.effective_termination(),
        )
        group: TrajectoryGroup | None = await asyncio.create_task(running, context=owner.context.copy())
        if group is None:
            return []
        received, failed = len(group.trajectories_G), len(group.rollout_errors)
        if not received <= count <= received + failed:
            raise ValueError(
                f"a group builder that is resized to {count} must make {count} environments, got {received} rollouts "
                f"and {failed} errors from {type(owner.builder).__name__}; pass a resize that sets their number"
            )
        owner.errors += group.rollout_errors
        return rollouts_of(group, self.allocation)

    def _trained(self, batch: Batch) -> list[Group]:
        """Return the groups of which some rollout enters the loss."""
        return [group for group in self.allocation.allocator.groups(batch) if group.keep.any()]

    def _learn(self, batch: Batch, groups: Sequence[Group]) -> dict[str, float]:
        """Learn from a finished batch, save what is known, and return the metrics of the batch."""
        rule, estimator = self.allocation.allocator, self.allocation.trained_estimator
        found = allocation_metrics(batch, groups, estimator) | rule.metrics(batch)
        logged = prefixed(found, self.allocation.selection)
        self.allocation.observe(batch)
        if self.price is not None:
            self.price.forget()
        self.step += 1
        save(self.config, self.step, self.last, self._state())
        return {name: value for name, value in logged.items() if not math.isnan(value)}

    def _state(self) -> dict[str, Any]:
        own, price = self.allocation, self.price
        alone = {} if self.config.async_config is None else {"price": price and price.state_dict()}
        return {
            "name": own.allocator.name, **own.state_dicts(), "settings": own.settings, "drawn": self._drawn
        } | alone  # fmt: skip

    def _load(self, saved: SavedValues) -> None:
        self.allocation.load_state_dicts(saved.values, saved.state("settings"))
        self._drawn = saved.count("drawn")
        if self.price is not None:
            self.price.load_state_dict(saved.state("price"))


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
        totals = {own.reward + sum(step.reward for step in own.trajectory.transitions) for own in group.members}
        trains = len(totals) > self.config.remove_constant_reward_groups
        self._completed += trains
        updated = trains and self._completed % self.config.async_config.groups_per_batch == 0
        if updated or (self._asked >= self.last and not self._left):
            whole, self._unlearnt = Batch.concatenate(self._unlearnt), []
            self._held.difference_update(prompt.id for prompt in whole.prompts)
            group.log(self._learn(whole, self._trained(whole)))
