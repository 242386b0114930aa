"""The configuration of tinker-cookbook with an allocator in it."""

from typing import Any

import chz
from tinker_cookbook.rl.rollout_limits import TerminationRewardPolicy
from tinker_cookbook.rl.train import Config

from apportion.allocators import Allocator
from apportion.scheduler.decisions import UNDECIDED
from apportion.tinker.batch import RoundSettings
from apportion.tinker.builder import AllocatedDatasetBuilder
from apportion.tinker.groups import AllocatedRollouts
from apportion.tinker.settings import TinkerAllocation
from apportion.tinker.streamed import check_streamed

LINEAR_LOSSES = ("importance_sampling", "ppo", "cispo")
"""Losses of the service in which a factor of an advantage is a factor of its gradient."""


def allocated(config: Config, allocator: Allocator = UNDECIDED, **settings: Any) -> Config:
    """Return ``config`` with rollouts that ``allocator`` allocates, for ``tinker_cookbook.rl.train.main``.

    ``settings`` are the others of ``TinkerAllocation``, such as a ``preset`` in place of the allocator. Everything else
    of ``config`` works as before: the strategy for errors and the policy for limits apply to every round. Raises
    ValueError for a mode that cannot have an allocator.
    """
    allocation = TinkerAllocation(allocator=allocator, **settings)
    _check(config, allocation)
    rounds = RoundSettings(config.effective_rollout_strategy(), config.effective_termination())
    return chz.replace(
        config,
        dataset_builder=AllocatedDatasetBuilder(config=config, allocation=allocation, settings=rounds),
        num_epochs=1,  # those of the data set, so that an index is a step
        rollout_error_tolerance=AllocatedRollouts(rounds.strategy),
        termination=TerminationRewardPolicy(),  # applied in every round
    )


def _check(config: Config, allocation: TinkerAllocation) -> None:
    """Raise ValueError for a configuration that an allocator cannot work with."""
    if isinstance(config.rollout_error_tolerance, AllocatedRollouts):
        raise ValueError("config must have no allocator yet, got one from allocated(); call it once")
    if config.stream_minibatch_config is not None:
        raise ValueError(
            "stream_minibatch_config must be None with an allocator, because the groups of a batch end together, so "
            "there is nothing to stream; leave it out"
        )
    if config.async_config is not None:
        check_streamed(allocation)
    if config.training_loss_fn() not in LINEAR_LOSSES:
        where = "loss_fn" if config.async_config is None else "AsyncConfig.loss_fn"
        raise ValueError(
            f"{where} must be one of {', '.join(LINEAR_LOSSES)} with an allocator, got {config.training_loss_fn()!r}; "
            "weights of prompts need a loss that is linear in the advantage"
        )
