"""``python -m apportion.verl``: verl's trainer on its own configuration, once that and the allocator fit together."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config
from verl.utils.device import auto_set_device

from apportion.config import ConfigError
from apportion.integrations.verl.checks import check
from apportion.integrations.verl.configs import CHOICES, GROUP, PARTS
from apportion.integrations.verl.settings import allocation_of

USAGE = 2


@hydra.main(config_path="pkg://apportion.integrations.verl.conf", config_name="apportion", version_base=None)
def main(config: DictConfig) -> None:
    """Trains as ``verl.trainer.main_ppo`` does; code 2 and one line on stderr where the configuration is refused."""
    try:
        check_choices(config, HydraConfig.get().runtime.choices)
        check(config, allocation_of(config))
    except ValueError as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        sys.exit(USAGE)
    auto_set_device(config)
    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    run_ppo(config, task_runner_class=TaskRunnerV1)


def check_choices(config: DictConfig, choices: Mapping[str, str]) -> None:
    """Raises ConfigError where a name was changed, and the settings of what Hydra's ``choices`` say are still there."""
    places = {GROUP: (f"{GROUP}.allocator", CHOICES)} | {part.group: (part.place, part.kinds) for part in PARTS}
    for group, (place, kinds) in places.items():
        chosen, found = choices.get(group, ""), OmegaConf.select(config, place)
        if chosen not in kinds or not isinstance(found, DictConfig):
            continue
        name, settings = found.get("name"), {field.name for field in fields(kinds[chosen]) if field.init}
        if name != chosen and settings and settings <= found.keys():
            raise ConfigError(
                f"{place}.name must be {chosen}, whose settings are there by {group}={chosen}, got {name}; "
                f"choose {group}={name} instead"
            )
