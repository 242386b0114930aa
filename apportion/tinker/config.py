"""The configuration of tinker-cookbook with an allocator in it."""

import logging
from typing import Any

import chz
from tinker_cookbook.rl.rollout_limits import TerminationRewardPolicy
from tinker_cookbook.rl.rollouts import get_rollout_executor
from tinker_cookbook.rl.train import Config
from tinker_cookbook.rl.types import RLDataset, RLDatasetBuilder

from apportion.allocators import Allocator
from apportion.scheduler.decisions import UNDECIDED, bill
from apportion.scheduler.scheduler import plans_prompts_alone
from apportion.tinker.dataset import AllocatedDataset, StreamedDataset
from apportion.tinker.groups import AllocatedRollouts
from apportion.tinker.problems import size_of
from apportion.tinker.settings import TinkerAllocation

LINEAR_LOSSES = ("importance_sampling", "ppo", "cispo")
"""Losses of the service in which a factor of an advantage is a factor of its gradient."""

WHOLE_BATCH = ("batch_optimal", "reinforce_plus_plus")
"""Estimators that compare the rollouts of a batch."""

logger = logging.getLogger(__name__)


def allocated(config: Config, allocator: Allocator = UNDECIDED, **settings: Any) -> Config:
    """Return ``config`` with rollouts that ``allocator`` allocates, for ``tinker_cookbook.rl.train.main``.

    ``settings`` are the others of ``TinkerAllocation``, such as a ``preset`` in place of the allocator. Everything else
    of ``config`` works as before: the strategy for errors and the policy for limits apply to every round. Raises
    ValueError for a mode that cannot have an allocator.
    """
    allocation = TinkerAllocation(allocator=allocator, **settings)
    _check(config, allocation)
    return chz.replace(
        config,
        dataset_builder=AllocatedDatasetBuilder(config=config, allocation=allocation),
        num_epochs=1,  # those of the data set, so that an index is a step
        rollout_error_tolerance=AllocatedRollouts(config.effective_rollout_strategy()),
        termination=TerminationRewardPolicy(),  # applied in every round
    )


@chz.chz
class AllocatedDatasetBuilder(RLDatasetBuilder):  # type: ignore[misc]
    """Builds the data sets of the user's ``config``. Only the one for training is under the allocator."""

    config: Config
    allocation: TinkerAllocation

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        """Return the data sets for training and for evaluation. Raises ValueError with a rollout executor."""
        if get_rollout_executor() is not None:
            raise ValueError(
                "rollout_executor must be None with an allocator, got one: the allocator is in this process, and other "
                "processes could not ask it; leave it out"
            )
        train, test = await self.config.dataset_builder()
        first = train.get_batch(0)
        each = size_of(first[0])
        allocation = self.allocation.with_budget(each)
        logger.info(bill(allocation.allocator, len(first), None if each is None else each * len(first)))
        kind = AllocatedDataset if self.config.async_config is None else StreamedDataset
        dataset = kind(train, self.config, allocation)
        dataset.resume()
        return dataset, test


def _check(config: Config, allocation: TinkerAllocation) -> None:
    """Raise ValueError for a configuration that an allocator cannot work with."""
    if isinstance(config.rollout_error_tolerance, AllocatedRollouts):
        raise ValueError("config must have no allocator yet, got one from allocated(); call it once")
    if config.stream_minibatch_config is not None:
        raise ValueError(
            "stream_minibatch_config must be None with an allocator, because the groups of a batch end together, so "
            "there is nothing to stream; leave it out"
        )
    where, allocator, estimator = "loss_fn", allocation.allocator, allocation.trained_estimator
    if config.async_config is not None:
        where = "AsyncConfig.loss_fn"
        if not plans_prompts_alone(allocator):
            raise ValueError(
                f"async_config must be None with {allocator.name}, which compares the prompts of a batch; leave it "
                "out, or take a rule that is separable or has a price, such as VIP or HORA"
            )
        if estimator in WHOLE_BATCH:
            raise ValueError(
                f"async_config must be None with the estimator {estimator}, which compares the rollouts of a batch; "
                "leave it out, or take another estimator"
            )
    if config.training_loss_fn() not in LINEAR_LOSSES:
        raise ValueError(
            f"{where} must be one of {', '.join(LINEAR_LOSSES)} with an allocator, got {config.training_loss_fn()!r}; "
            "weights of prompts need a loss that is linear in the advantage"
        )
