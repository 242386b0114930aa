"""verl's task runner, which creates the trainer in a process of its own, with a selection if there is one."""

import logging
from typing import Any

import ray
from omegaconf import DictConfig
from verl.experimental.reward_loop import RewardLoopManager
from verl.trainer.main_ppo import TaskRunnerV1

from apportion.advantages import agreement
from apportion.verl import advice, checks, sampler
from apportion.verl.manager import AllocatedAgentLoopManager
from apportion.verl.seam import call_before
from apportion.verl.settings import allocation_of
from apportion.verl.worker_processes import RESTARTS


class AllocatedTaskRunner(TaskRunnerV1.__ray_actor_class__):  # type: ignore[misc]
    """verl's runner.

    Before it trains, it replaces the maker of the training data's sampler, and makes reward workers restart.

    Raises RuntimeError with the cause if the coordinator had to interrupt the trainer.
    """

    def run(self, config: DictConfig) -> None:
        """Train under ``config``."""
        for module in (advice, checks, agreement):  # the command has logged their warnings, before Ray started
            logging.getLogger(module.__name__).setLevel(logging.ERROR)
        sampler.install(allocation_of(config).selection is not None)
        call_before(RewardLoopManager, "_init_reward_loop_workers", restart_rewarders)
        try:
            super().run(config)
        except KeyboardInterrupt:
            if AllocatedAgentLoopManager.latest is not None:
                AllocatedAgentLoopManager.latest.check()
            raise


def restart_rewarders(manager: Any) -> None:
    """Have Ray restart the reward workers of ``manager`` that die. A call that was lost is repeated."""
    plain = manager.reward_loop_workers_class.__ray_actor_class__
    manager.reward_loop_workers_class = ray.remote(max_restarts=RESTARTS, max_task_retries=1)(plain)
