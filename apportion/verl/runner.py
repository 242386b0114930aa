"""verl's task runner, which creates the trainer in a process of its own, with a selection if there is one."""

import logging

from omegaconf import DictConfig
from verl.trainer.main_ppo import TaskRunnerV1

from apportion.advantages import agreement
from apportion.verl import advice, checks, sampler
from apportion.verl.settings import allocation_of


class AllocatedTaskRunner(TaskRunnerV1.__ray_actor_class__):  # type: ignore[misc]
    """verl's, which first replaces what makes the sampler of the training data."""

    def run(self, config: DictConfig) -> None:
        """Train under ``config``."""
        for module in (advice, checks, agreement):  # the command has logged their warnings, before Ray started
            logging.getLogger(module.__name__).setLevel(logging.ERROR)
        sampler.install(allocation_of(config).selection is not None)
        super().run(config)
