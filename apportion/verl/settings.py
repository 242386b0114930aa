"""Read the settings of an allocation from verl's configuration."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from apportion.advantages import Reduction, default_weighting, rollout_needs
from apportion.config import ConfigError, build, placed
from apportion.presets import PRESETS, Preset
from apportion.verl.coordinator.settings import PREFIX, VerlAllocation
from apportion.verl.estimators import LOSSES, OWN_AGGREGATION


def allocation_of(config: DictConfig) -> VerlAllocation:
    """Return the settings under ``allocation`` in verl's ``config``.

    They may also be the name of an allocator or a preset alone. Null means that a key is left out. An allocator without
    a budget gets ``rollout.n`` rollouts a prompt, so that a batch has as many rollouts as without an allocator.

    Raises ConfigError without settings, for an unknown key, and for a value that does not fit.
    """
    table = OmegaConf.select(config, "allocation")
    if table is None:
        raise ConfigError(
            "the configuration must have allocation, got none; start with python -m apportion.verl, or give stock verl "
            "+allocation=fixed_baseline"
        )
    if isinstance(table, str):
        table = OmegaConf.create({"preset" if table in PRESETS else "allocator": table})
    try:
        plain: Any = _without_null(OmegaConf.to_container(table, resolve=True, throw_on_missing=True))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key} must have a value, got {str(error).splitlines()[0]!r}; set it") from error
    if _spelled_out(table):
        del plain["preset"]
    rollouts = int(config.actor_rollout_ref.rollout.n)
    allocation = build(VerlAllocation, plain, "allocation")
    if "preset" in plain:
        _check_estimator(build(Preset, plain["preset"], "allocation.preset"), config)
    try:
        allocator = allocation.allocator.with_estimator(trained_estimator(config))
        return replace(allocation, allocator=allocator.with_budget(rollouts))
    except ValueError as error:
        raise ConfigError(
            f"{placed(str(error), type(allocation.allocator), 'allocation.allocator')} (rollouts_per_prompt is "
            f"actor_rollout_ref.rollout.n by default, {rollouts})"
        ) from error


def _spelled_out(table: DictConfig) -> bool:
    """Return whether all settings of a preset's allocator stand beside its name, as where Hydra chose the preset.

    The preset then only says where they are from, because any of them may have been changed.
    """
    name, allocator = table.get("preset"), table.get("allocator")
    if name not in PRESETS or not isinstance(allocator, DictConfig):
        return False
    own: Any = PRESETS[name]().allocator
    return allocator.get("name") == own.name and {field.name for field in fields(own) if field.init} <= allocator.keys()


def trained_estimator(config: DictConfig) -> str:
    """Return the name of the estimator that trains, in ``apportion.advantages.ESTIMATORS`` if it is there."""
    name = str(OmegaConf.select(config, "algorithm.adv_estimator")).removeprefix(PREFIX)
    normalised = OmegaConf.select(config, "algorithm.norm_adv_by_std_in_grpo", default=True)
    return "dr_grpo" if name == "grpo" and not normalised else name


def _check_estimator(preset: Preset, config: DictConfig) -> None:
    if preset.estimator not in (None, trained_estimator(config)):
        raise ConfigError(
            f"algorithm.adv_estimator must be {PREFIX}{preset.estimator} with this allocation.preset, got "
            f"{config.algorithm.adv_estimator}; set it"
        )


def by_row(config: DictConfig) -> bool:
    """Return whether each row has its own uid, by which the ``apportion_`` estimators find its group."""
    return str(config.algorithm.adv_estimator).startswith(PREFIX)


def refilling(config: DictConfig) -> list[str]:
    """Return the settings in ``config`` that make verl replace single prompts, such as those without a rollout."""
    v1 = config.trainer.v1
    each = {
        f"trainer.v1.trainer_mode={v1.trainer_mode}": v1.trainer_mode != "sync",
        "algorithm.filter_groups.enable=True": OmegaConf.select(config, "algorithm.filter_groups.enable"),
        "trainer.v1.sampler.sync_refill_failed_groups=True": v1.sampler.get("sync_refill_failed_groups"),
    }
    return [setting for setting, enabled in each.items() if enabled]


def norm_reduction(config: DictConfig, allocation: VerlAllocation) -> Reduction | None:
    """Return how the loss reduces a row's tokens; None if neither ``allocation`` nor the estimator needs norms.

    Weights by token undo a mean.
    """
    own = str(config.algorithm.adv_estimator).removeprefix(PREFIX) if by_row(config) else None
    parts = (part.needs for part in allocation.parts.values() if part is not None)
    if not any(needs.score_norms for needs in (rollout_needs(own), *parts)):
        return None
    if own is not None and (allocation.weighting or default_weighting(own)) == "token":
        return "sum"
    actor = config.actor_rollout_ref.actor
    return LOSSES[OWN_AGGREGATION.get(actor.policy_loss.get("loss_mode", "vanilla"), actor.loss_agg_mode)][0]


def _without_null(table: Any) -> Any:
    if isinstance(table, Mapping):
        return {key: _without_null(value) for key, value in table.items() if value is not None}
    return [_without_null(value) for value in table] if isinstance(table, list) else table
