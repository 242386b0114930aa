"""Builds the user's data sets, and puts the one for training under the allocator."""

import logging

import chz
from tinker_cookbook.rl.rollouts import get_rollout_executor
from tinker_cookbook.rl.train import AsyncConfig
from tinker_cookbook.rl.types import RLDataset, RLDatasetBuilder

from apportion.allocators import warn_of_equal_counts
from apportion.engines.decisions import bill
from apportion.tinker.batch import RoundSettings
from apportion.tinker.checkpoints import StateFiles
from apportion.tinker.dataset import AllocatedDataset
from apportion.tinker.problems import size_of
from apportion.tinker.settings import TinkerAllocation
from apportion.tinker.streamed import StreamedDataset

logger = logging.getLogger(__name__)


@chz.chz
class AllocatedDatasetBuilder(RLDatasetBuilder):  # type: ignore[misc]
    """Builds the user's data sets by ``inner``. Only the one for training is under the allocator."""

    inner: RLDatasetBuilder
    epochs: int
    allocation: TinkerAllocation
    settings: RoundSettings
    log_path: str
    max_steps: int | None
    save_every: int
    rolling_save_every: int
    asynchronous: AsyncConfig | None
    drops_constant: bool

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        """Return the data sets for training and for evaluation. Raises ValueError with a rollout executor."""
        if get_rollout_executor() is not None:
            raise ValueError(
                "rollout_executor must be None with an allocator, got one: the allocator is in this process, and other "
                "processes could not ask it; leave it out"
            )
        train, test = await self.inner()
        first = train.get_batch(0)
        allocation = self.allocation.with_budget(size_of(first[0]))
        warn_of_equal_counts(allocation.allocator, len(first))
        each = size_of(first[0])
        logger.info(bill(allocation.allocator, len(first), None if each is None else each * len(first)))
        steps = len(train) * self.epochs
        last = steps if self.max_steps is None else min(steps, self.max_steps)
        states = StateFiles(self.log_path, self.save_every, self.rolling_save_every, last)
        common = (train, self.epochs, allocation, self.settings, states)
        dataset = (
            AllocatedDataset(*common)
            if self.asynchronous is None
            else StreamedDataset(*common, self.asynchronous, self.drops_constant)
        )
        dataset.resume()
        return dataset, test
