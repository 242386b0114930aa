"""What does not fit together in verl's configuration and an allocator's settings: refused before Ray starts."""

from __future__ import annotations

import logging
import math
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.core_algos import AdvantageEstimator, get_adv_estimator_fn
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.utils.import_utils import load_class_from_fqn

from apportion.allocators import AR3PO, DAPO, Allocator, ReinforceAda, Select
from apportion.config import choices
from apportion.consensus import ConsensusAllocator
from apportion.integrations.verl.checkpoints import SavedAllocation, resumed_file
from apportion.integrations.verl.estimators import LOSSES, NAMES, PREFIX
from apportion.integrations.verl.seam import check_installed
from apportion.integrations.verl.settings import Allocation, by_row

logger = logging.getLogger(__name__)

MANAGER = "apportion.integrations.verl.AllocatedAgentLoopManager"
SAVED = "apportion.integrations.verl.SavedAllocation"

AGGREGATED = ("vanilla", "dppo_tv", "dppo_kl", "gspo", "gpg", "clip_cov", "kl_cov", "dro", "cispo", "bypass_mode")
"""verl's ``policy_loss.loss_mode`` that weigh rows by ``loss_agg_mode``, whatever it is."""

OWN_AGGREGATION = {"sapo": "seq-mean-token-mean"}
"""Those that take one ``loss_agg_mode`` for any other."""

UNLIKE = ("remax", "gdpo")
"""verl's estimators that sample, or reward, in a way of their own."""


def check(config: DictConfig, allocation: Allocation) -> None:
    """Raises ValueError for what cannot work with verl's ``config``; logs a warning for what wastes computation."""
    check_installed()
    _check_trainer(config)
    _check_allocator(config, allocation.allocator)
    _check_filter(config, allocation.allocator)
    _check_estimator(config, allocation)
    _check_reuse(config, allocation.allocator)
    _check_checkpoints(config)
    _check_size(config, allocation.allocator)


def row_multiple(config: DictConfig) -> int:
    """Rows of which verl makes a batch a multiple by padding: of the actor's mini-batch, and of the critic's."""
    rollouts = config.actor_rollout_ref.rollout.n
    actor, critic = config.actor_rollout_ref.actor.ppo_mini_batch_size, config.critic
    enabled = config.algorithm.adv_estimator == "gae" if critic.enable is None else critic.enable
    return int(rollouts * (math.lcm(actor, critic.ppo_mini_batch_size) if enabled else actor))


def _check_trainer(config: DictConfig) -> None:
    if not config.trainer.get("use_v1", False):
        raise ValueError("trainer.use_v1 must be True, got False; verl's old trainer has no seam for an allocator")
    get_trainer_cls(config.trainer.v1.trainer_mode)
    manager = OmegaConf.select(config, "actor_rollout_ref.rollout.agent.agent_loop_manager_class")
    if manager != MANAGER:
        raise ValueError(
            f"actor_rollout_ref.rollout.agent.agent_loop_manager_class must be {MANAGER}, got {manager!r}; set it so"
        )
    model = config.reward.reward_model
    if model.enable and not model.enable_resource_pool:
        raise ValueError(
            "reward.reward_model.enable_resource_pool must be True where a reward model is used, got False: a "
            "colocated one scores after sampling, and allocators read rewards in between"
        )
    if OmegaConf.select(config, "skip.rollout_tq.enable"):
        raise ValueError(
            "skip.rollout_tq.enable must be False, got True: rollouts that are read from a file have no allocator"
        )


def _check_allocator(config: DictConfig, allocator: Allocator) -> None:
    if allocator.needs_score_norms:
        raise ValueError(
            f"score norms of rollouts are not known in verl, and {allocator.name} needs them; take another "
            "allocator or predictor, such as counts"
        )
    allocator.check(int(config.data.train_batch_size))
    mode, sampler = config.trainer.v1.trainer_mode, config.trainer.v1.sampler
    replacing = {
        f"trainer.v1.trainer_mode={mode}": mode != "sync",
        "algorithm.filter_groups.enable=True": _filters(config),
        "trainer.v1.sampler.sync_refill_failed_groups=True": bool(sampler.get("sync_refill_failed_groups", False)),
    }
    for setting, replaces in replacing.items():
        if not replaces:
            continue
        try:
            allocator.check(1)
        except ValueError as error:
            raise ValueError(
                f"{allocator.name} must be able to spend on any number of prompts with {setting}, which has verl "
                f"replace some by others, but {error}; give rollouts_per_prompt instead of a budget"
            ) from error


def _check_filter(config: DictConfig, allocator: Allocator) -> None:
    if _filters(config) and isinstance(allocator, (DAPO, Select, ConsensusAllocator)):
        raise ValueError(
            f"algorithm.filter_groups.enable must be False where the allocator leaves prompts without rows, got True "
            f"with {allocator.name}; verl's filter reads rows of every prompt"
        )


def _check_estimator(config: DictConfig, allocation: Allocation) -> None:
    name = str(config.algorithm.adv_estimator)
    if name in UNLIKE:
        raise ValueError(
            f"algorithm.adv_estimator must not be {name}, which samples, or rewards, in a way of its own; use one of "
            f"{', '.join(NAMES)}"
        )
    if by_row(config):
        _check_own_estimator(config, name)
    else:
        _check_verls_estimator(name, allocation)


def _check_own_estimator(config: DictConfig, name: str) -> None:
    actor = config.actor_rollout_ref.actor
    loss, mode = actor.loss_agg_mode, actor.policy_loss.get("loss_mode", "vanilla")
    if name not in NAMES:
        raise ValueError(f"algorithm.adv_estimator must be known, got {name}; {choices(name, NAMES)}")
    if loss not in LOSSES:
        raise ValueError(
            f"actor_rollout_ref.actor.loss_agg_mode must be one of {', '.join(LOSSES)}, got {loss!r}; "
            "how a loss treats masked rows must be known"
        )
    if mode not in AGGREGATED and mode not in OWN_AGGREGATION:
        raise ValueError(
            f"actor_rollout_ref.actor.policy_loss.loss_mode must be one of {', '.join([*AGGREGATED, *OWN_AGGREGATION])}"
            f" with {name}, got {mode}; how a loss weighs rows must be known"
        )
    if OWN_AGGREGATION.get(mode, loss) != loss:
        raise ValueError(
            f"actor_rollout_ref.actor.loss_agg_mode must be {OWN_AGGREGATION[mode]} with policy_loss.loss_mode={mode}, "
            f"got {loss}; verl takes that one in any case, and {name} must know"
        )
    if name == f"{PREFIX}grpo" and not config.algorithm.get("norm_adv_by_std_in_grpo", True):
        raise ValueError(
            f"algorithm.norm_adv_by_std_in_grpo must be True with {name}, got False; {PREFIX}dr_grpo does not normalize"
        )


def _check_verls_estimator(name: str, allocation: Allocation) -> None:
    try:
        get_adv_estimator_fn(name)
    except ValueError as error:
        known = [*NAMES, *(each.value for each in AdvantageEstimator if each.value not in UNLIKE)]
        raise ValueError(f"algorithm.adv_estimator must be known, got {name}; {choices(name, known)}") from error
    if allocation.weighting != "prompt":
        raise ValueError(
            f"allocation.weighting is of the {PREFIX} estimators, got {allocation.weighting} with {name}; leave it "
            f"out, or set algorithm.adv_estimator={PREFIX}rloo"
        )
    if _compares_beyond_loss(allocation.allocator):
        raise ValueError(
            f"algorithm.adv_estimator must be one of {', '.join(NAMES)} with {allocation.allocator.name}, got {name}: "
            "rollouts are compared with some that are not trained on, which verl's own estimators do not see"
        )
    if name != AdvantageEstimator.GAE.value:
        logger.warning(
            "algorithm.adv_estimator=%s weighs prompts by their rollouts, and compares rollouts only with those that "
            "are trained on; %srloo does neither",
            name,
            PREFIX,
        )


def _compares_beyond_loss(allocator: Allocator) -> bool:
    inner = allocator.allocator if isinstance(allocator, Select) else allocator
    if isinstance(inner, AR3PO):
        return inner.reuse == "stop_gradient"
    return isinstance(inner, ReinforceAda) and inner.down_sample


def _check_reuse(config: DictConfig, allocator: Allocator) -> None:
    if not allocator.trains_on_reused:
        return
    correction = config.algorithm.get("rollout_correction") or {}
    bypass, corrected = bool(correction.get("bypass_mode")), correction.get("rollout_is") is not None
    if not allocator.needs_behaviour and bypass:
        raise ValueError(
            f"algorithm.rollout_correction.bypass_mode must be False where {allocator.name} recomputes probabilities "
            'of reused rows, got True; set it to False, or allocator.reuse="replay"'
        )
    if allocator.needs_behaviour and not (
        config.actor_rollout_ref.rollout.calculate_log_probs and (bypass or corrected)
    ):
        raise ValueError(
            f"{allocator.name} trains on rows with the probabilities that they were sampled with: set "
            "actor_rollout_ref.rollout.calculate_log_probs=True and algorithm.rollout_correction.rollout_is=token (or "
            'bypass_mode=True), or allocator.reuse="recompute"'
        )


def _check_checkpoints(config: DictConfig) -> None:
    """That what is learnt is saved, and is in what is resumed, where that is seen from here."""
    trainer = config.trainer
    callback = trainer.get("checkpoint_callback_class")
    if trainer.save_freq > 0 and not (callback and _saves(callback)):
        raise ValueError(
            f"trainer.checkpoint_callback_class must be {SAVED}, or a class that extends it, where trainer.save_freq "
            f"is above 0, got {callback}; without it checkpoints lack what the allocator learnt"
        )
    folder = trainer.resume_from_path
    if trainer.resume_mode != "resume_path" or (folder and Path(folder).exists()):
        resumed_file(config)


def _saves(callback: str) -> bool:
    try:
        return issubclass(load_class_from_fqn(callback, "trainer.checkpoint_callback_class"), SavedAllocation)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"trainer.checkpoint_callback_class must be there, got {callback}: {error}; see to it"
        ) from error


def _check_size(config: DictConfig, allocator: Allocator) -> None:
    prompts, multiple = int(config.data.train_batch_size), row_multiple(config)
    kept = allocator.most_kept(prompts)
    if not allocator.fixed_total or kept is None:
        return
    if kept % multiple:
        logger.warning(
            "%s trains on %d rows of %d prompts, and verl pads them to a multiple of %d; have ppo_mini_batch_size x "
            "rollout.n divide them to train on no padding",
            allocator.name,
            kept,
            prompts,
            multiple,
        )
    updates = config.trainer.v1.separate_async.parameter_sync_step
    if config.trainer.v1.trainer_mode == "separate_async" and updates > 1 and not allocator.separable:
        logger.warning(
            "%s gives prompts unequal numbers of rows, and verl pads those of each of %d updates to a multiple of %d; "
            "with trainer_mode=colocate_async they are trained on together",
            allocator.name,
            updates,
            multiple,
        )


def _filters(config: DictConfig) -> bool:
    return bool(OmegaConf.select(config, "algorithm.filter_groups.enable"))
