"""verl's task runner, which creates the trainer in a process of its own, with a selection if there is one."""

from omegaconf import DictConfig
from verl.trainer.main_ppo import TaskRunnerV1

from apportion.verl import sampler
from apportion.verl.settings import allocation_of


class AllocatedTaskRunner(TaskRunnerV1.__ray_actor_class__):  # type: ignore[misc]
    """verl's, which first replaces the sampler of the training data if prompts are selected."""

    def run(self, config: DictConfig) -> None:
        """Train under ``config``."""
        if allocation_of(config).selection is not None:
            sampler.install()
        super().run(config)
