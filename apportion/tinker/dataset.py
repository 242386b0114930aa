"""The user's data set under an allocator: its batches, and what is learned from each of them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from tinker_cookbook.rl.dataset_utils import EpochCycledRLDataset
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset

from apportion.engines.fresh_rows import FreshRows, draw_distinct
from apportion.engines.metrics import allocation_metrics, prefixed
from apportion.predictors.saved import SavedValues
from apportion.scheduler.decisions import check_draws
from apportion.tinker.batch import AllocatedBatch, RoundSettings
from apportion.tinker.checkpoints import StateFiles
from apportion.tinker.groups import AllocatedGroup
from apportion.tinker.rewards import RewardedTrajectory, rewarded
from apportion.tinker.settings import TinkerAllocation
from apportion.types import Batch, Group, Prompt


class AllocatedDataset(RLDataset):  # type: ignore[misc]
    """The batches of ``inner`` for ``epochs`` epochs. Their groups are sized by the allocator.

    Batches are asked for in order, one at a time. ``inner`` must return the same problems for the same index.
    """

    def __init__(
        self, inner: RLDataset, epochs: int, allocation: TinkerAllocation, settings: RoundSettings, states: StateFiles
    ) -> None:
        self.inner, self.allocation, self.settings, self.states = inner, allocation, settings, states
        self.batches = EpochCycledRLDataset(inner, epochs)
        self.step = states.resumed()
        predictor = getattr(allocation.allocator, "predictor", None)
        if predictor is not None and predictor.reads_texts:
            allocation.allocator.prepare(self._catalogue)
        if allocation.selection is not None:
            allocation.selection.prepare(self._catalogue, allocation.seed, predictor)

    def resume(self) -> None:
        """Restore the state beside the checkpoint that the loop resumes from, if there is one."""
        if self.step:
            self.states.restore(self.step, list(self._state()), self._load)

    def __len__(self) -> int:
        return len(self.batches)

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        """Return a group builder for each place of the next batch. Raises ValueError for any other batch."""
        if index != self.step:
            raise ValueError(
                f"batches must be asked for in order, each after the one before it is sampled, got {index} for "
                f"{self.step}; train by tinker_cookbook.rl.train.main"
            )
        builders, selection = self.batches.get_batch(index), self.allocation.selection
        prompts = (
            [self._prompt(builder) for builder in builders]
            if selection is None
            else [self._catalogue[row] for row in selection.choose(len(builders))]
        )
        check_draws(self.allocation.allocator, len(prompts), lambda _: self._distinct)
        places = max(len(prompts), getattr(self.allocation.allocator, "target", None) or 0)
        batch = AllocatedBatch(self.allocation, self.settings, prompts, places, self._draw, self._finish)
        return [AllocatedGroup(partial(batch.group, place)) for place in range(places)]

    def _prompt(self, builder: EnvGroupBuilder) -> Prompt:
        return replace(self.allocation.prompt_of(builder), data=builder)

    @cached_property
    def _catalogue(self) -> list[Prompt]:
        """The prompts of an epoch."""
        return [self._prompt(builder) for index in range(len(self.inner)) for builder in self.inner.get_batch(index)]

    @cached_property
    def _distinct(self) -> int:
        return len({prompt.id for prompt in self._catalogue})

    @cached_property
    def _fresh(self) -> FreshRows:
        return FreshRows([{"row": row} for row in range(len(self._catalogue))], self.allocation.seed)

    def _draw(self, count: int, held: set[str]) -> list[Prompt]:
        """Return ``count`` prompts for the middle of a batch, with ids that are not in ``held``."""
        if self.allocation.selection is not None:
            rows = self.allocation.selection.choose(count, held)
        else:
            found = draw_distinct(self._fresh, count, held, lambda row: self._catalogue[row["row"]].id)
            rows = [row["row"] for row in found]
        return [replace(self._catalogue[row]) for row in rows]

    def _finish(self, batch: Batch) -> list[tuple[Prompt, list[RewardedTrajectory]]]:
        """Learn from a finished batch, save what is known, and return the groups for the loss."""
        allocator = self.allocation.allocator
        if not batch.asked.any():
            raise ValueError(
                f"{allocator.name} must plan rollouts for a batch of {len(batch.prompts)} prompts, got none; raise its "
                "budget, or its minimum per prompt"
            )
        groups = [group for group in allocator.groups(batch) if group.keep.any()]
        trained, metrics = rewarded(groups, self.allocation), self._metrics(batch, groups)
        self.allocation.observe(batch)
        self.step += 1
        self.states.save(self.step, self._state())
        return [(group.prompt, with_metrics(members, metrics)) for group, members in zip(groups, trained, strict=True)]

    def _metrics(self, batch: Batch, groups: Sequence[Group]) -> dict[str, float]:
        found = allocation_metrics(
            batch, groups, self.allocation.trained_estimator
        ) | self.allocation.allocator.metrics(batch)
        logged = prefixed(found, self.allocation.selection)
        return {name: value for name, value in logged.items() if not math.isnan(value)}

    def _state(self) -> dict[str, Any]:
        return {
            "name": self.allocation.allocator.name,
            **self.allocation.state_dicts(),
            "settings": self.allocation.settings,
            "drawn": self._fresh.drawn if "_fresh" in vars(self) else 0,
        }

    def _load(self, saved: SavedValues) -> None:
        self.allocation.load_state_dicts(saved.values, saved.state("settings"))
        if drawn := saved.count("drawn"):
            self._fresh.restore(drawn)


def with_metrics(members: list[RewardedTrajectory], metrics: dict[str, float]) -> list[RewardedTrajectory]:
    """Return the members with ``metrics`` of the batch on the first, because the log has means over all that exist."""
    (trajectory, reward, own), *rest = members
    return [(trajectory, reward, own | metrics), *rest]
