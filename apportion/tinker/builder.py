"""Builds the user's data sets, and puts the one for training under the allocator."""

import logging

import chz
from tinker_cookbook.rl.rollouts import get_rollout_executor
from tinker_cookbook.rl.train import Config
from tinker_cookbook.rl.types import RLDataset, RLDatasetBuilder

from apportion.scheduler.decisions import bill
from apportion.tinker.batch import RoundSettings
from apportion.tinker.checkpoints import StateFiles
from apportion.tinker.dataset import AllocatedDataset
from apportion.tinker.problems import size_of
from apportion.tinker.settings import TinkerAllocation
from apportion.tinker.streamed import StreamedDataset

logger = logging.getLogger(__name__)


@chz.chz
class AllocatedDatasetBuilder(RLDatasetBuilder):  # type: ignore[misc]
    """Builds the data sets of the user's ``config``. Only the one for training is under the allocator."""

    config: Config
    allocation: TinkerAllocation
    settings: RoundSettings

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        """Return the data sets for training and for evaluation. Raises ValueError with a rollout executor."""
        if get_rollout_executor() is not None:
            raise ValueError(
                "rollout_executor must be None with an allocator, got one: the allocator is in this process, and other "
                "processes could not ask it; leave it out"
            )
        config = self.config
        train, test = await config.dataset_builder()
        first = train.get_batch(0)
        allocation = self.allocation.with_budget(size_of(first[0]))
        each = size_of(first[0])
        logger.info(bill(allocation.allocator, len(first), None if each is None else each * len(first)))
        steps = len(train) * config.num_epochs
        last = steps if config.max_steps is None else min(steps, config.max_steps)
        states = StateFiles(config.log_path, config.save_every, config.rolling_save_every, last)
        common = (train, config.num_epochs, allocation, self.settings, states)
        dataset = (
            AllocatedDataset(*common)
            if config.async_config is None
            else StreamedDataset(*common, config.async_config, config.remove_constant_reward_groups)
        )
        dataset.resume()
        return dataset, test
