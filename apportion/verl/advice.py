"""Warnings at the start of a run: settings of verl and of the allocator that work, but waste what they cost."""

import logging
import math

from omegaconf import DictConfig

from apportion.allocators import Allocator
from apportion.engines.prompts import reads_rates
from apportion.scheduler.decisions import warn_of_idle
from apportion.verl.coordinator.settings import VerlAllocation

logger = logging.getLogger(__name__)

PADDED_SHARE = 0.25
"""From this share of padding rows on a warning is logged, if the number of rows depends on outcomes."""


def warn(config: DictConfig, allocation: VerlAllocation) -> None:
    """Log a line for each setting without effect, and for each that wastes computation."""
    warn_of_idle(allocation, "allocation.")
    _warn_of_padding(config, allocation.allocator, streamed=allocation.stream)
    if allocation.rate_key is not None and not reads_rates(
        allocation.allocator, allocation.baseline, allocation.selection
    ):
        logger.warning(
            "allocation.rate_key=%s has no effect, because no predictor takes known rates; use empirical_bayes, or the "
            "baseline spo",
            allocation.rate_key,
        )


def row_multiple(config: DictConfig) -> int:
    """Return the number whose multiple verl pads a batch to, in rows, by the mini-batches of actor and critic."""
    rollouts = config.actor_rollout_ref.rollout.n
    actor, critic = config.actor_rollout_ref.actor.ppo_mini_batch_size, config.critic
    enabled = config.algorithm.adv_estimator == "gae" if critic.enable is None else critic.enable
    return int(rollouts * (math.lcm(actor, critic.ppo_mini_batch_size) if enabled else actor))


def _warn_of_padding(config: DictConfig, allocator: Allocator, *, streamed: bool) -> None:
    prompts, multiple = int(config.data.train_batch_size), row_multiple(config)
    size = allocator.size(prompts)
    if not size.exact:
        if (multiple - 1) / max(1, size.fewest) >= PADDED_SHARE:
            logger.warning(
                "outcomes decide on how many rows %s trains, at least %d of %d prompts, and verl pads them to a "
                "multiple of %d: up to %d masked rows in a step; a smaller ppo_mini_batch_size pads less",
                allocator.name,
                size.fewest,
                prompts,
                multiple,
                multiple - 1,
            )
        return
    if size.kept is None:
        return
    if size.kept % multiple:
        logger.warning(
            "%s trains on %d rows of %d prompts, and verl pads them to a multiple of %d; choose ppo_mini_batch_size so "
            "that ppo_mini_batch_size x rollout.n divides them, and there is no padding",
            allocator.name,
            size.kept,
            prompts,
            multiple,
        )
    updates = config.trainer.v1.separate_async.parameter_sync_step
    separate = config.trainer.v1.trainer_mode == "separate_async"
    if separate and updates > 1 and not allocator.separable and not streamed:
        logger.warning(
            "%s gives prompts unequal numbers of rows, and verl pads each of %d updates to a multiple of %d; "
            "allocation.stream=True fills each of them, and trainer_mode=colocate_async trains on all of them together",
            allocator.name,
            updates,
            multiple,
        )
