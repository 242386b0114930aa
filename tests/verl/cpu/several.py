"""verl's command, which trains under several allocations one after the other in the same processes.

``+several=[...]`` holds what ``allocation`` would; each has a manager, workers and a coordinator of its own, for as
many steps as ``trainer.total_training_steps`` says, and goes on from the weights of the one before.
"""

import hydra
import ray
from omegaconf import open_dict
from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils import tracking
from verl.utils.config import validate_config


@ray.remote
class Several(TaskRunnerV1.__ray_actor_class__):
    def init_agent_loop_manager(self):
        """Trains under all but the last allocation, and makes the manager of that."""
        steps = self.trainer.total_training_steps
        tracking.open = _opened_to_append
        for i, allocation in enumerate(self.config.several):
            if i:
                self.trainer.fit(self.agent_loop_manager)
                self.trainer.global_steps -= 1
                self.trainer.total_training_steps += steps
                self.trainer._init_dump_executor()
            with open_dict(self.config):
                self.config.allocation = allocation
            super().init_agent_loop_manager()


def _opened_to_append(path, mode, **settings):
    """In place of ``open`` where verl logs: one file holds the steps of all."""
    return open(path, mode.replace("w", "a"), **settings)


@hydra.main(config_path="pkg://verl.trainer.config", config_name="ppo_trainer", version_base=None)
def main(config):
    validate_config(config, need_reference_policy(config), need_critic(config))
    run_ppo(config, task_runner_class=Several)


if __name__ == "__main__":
    main()
