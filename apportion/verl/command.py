"""``python -m apportion.verl``: run verl's trainer once its configuration and the allocator fit together."""

import sys
from collections.abc import Mapping
from dataclasses import fields

import hydra
import ray
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from verl.trainer.main_ppo import run_ppo
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config
from verl.utils.device import auto_set_device

from apportion.advantages import ESTIMATORS, needs
from apportion.config import ConfigError
from apportion.presets import PRESETS
from apportion.scheduler.decisions import bill
from apportion.verl.checks import check, check_given
from apportion.verl.configs import ALLOCATION, GROUPS, SELECTION
from apportion.verl.coordinator.settings import PREFIX
from apportion.verl.runner import AllocatedTaskRunner
from apportion.verl.settings import allocation_of, trained_estimator
from apportion.verl.streaming import with_buffer

USAGE = 2


@hydra.main(config_path="pkg://apportion.verl.conf", config_name="apportion", version_base=None)
def main(config: DictConfig) -> None:
    """Train as ``verl.trainer.main_ppo`` does. Exit with code 2 and one line on stderr for a bad configuration."""
    try:
        check_choices(config, HydraConfig.get().runtime.choices)
        check_given(config)
        allocation = allocation_of(config)
        if allocation.stream:
            with_buffer(config)
        check(config, allocation)
    except ValueError as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        sys.exit(USAGE)
    prompts = int(config.data.train_batch_size)
    line = bill(allocation.allocator, prompts, prompts * int(config.actor_rollout_ref.rollout.n))
    sys.stderr.write(f"{line}\n")
    auto_set_device(config)
    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    run_ppo(config, task_runner_class=ray.remote(AllocatedTaskRunner))


def check_choices(config: DictConfig, choices: Mapping[str, str]) -> None:
    """Raise ConfigError if a name was changed but the settings beside it are those of Hydra's ``choices``.

    Another preset is refused beside a choice for the same reason, and an estimator that takes no baseline beside the
    choice of a preset that has one.
    """
    preset, chosen = OmegaConf.select(config, "allocation.preset"), choices.get(ALLOCATION.path, "")
    if preset not in (None, chosen) and chosen in ALLOCATION.choices:
        raise ConfigError(
            f"allocation.preset must be left out, because {ALLOCATION.path}={chosen} chose the settings beside it, got "
            f"{preset}; choose {ALLOCATION.path}={preset} instead"
        )
    if chosen in PRESETS and OmegaConf.select(config, "allocation.baseline") and not _takes_baseline(config):
        raise ConfigError(
            f"algorithm.adv_estimator must be {PREFIX}{PRESETS[chosen]().estimator}, because "
            f"{ALLOCATION.path}={chosen} has a baseline, got {config.algorithm.adv_estimator}; leave it out, or "
            f"keep it under {ALLOCATION.path}=uniform"
        )
    for group in (ALLOCATION, SELECTION, *GROUPS):
        chosen, found = choices.get(group.path, ""), OmegaConf.select(config, group.key)
        own = PRESETS[chosen]().allocator.name if chosen in group.presets else chosen
        if own not in group.kinds or not isinstance(found, DictConfig):
            continue
        name, settings = found.get("name"), {field.name for field in fields(group.kinds[own]) if field.init}
        if name != own and settings and settings <= found.keys():
            raise ConfigError(
                f"{group.key}.name must be {own}, because {group.path}={chosen} chose the settings beside it, got "
                f"{name}; choose {group.path}={name} instead"
            )


def _takes_baseline(config: DictConfig) -> bool:
    name = trained_estimator(config)
    return name in ESTIMATORS and "baseline" in needs(name)
