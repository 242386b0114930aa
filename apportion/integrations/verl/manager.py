"""verl's agent-loop manager, with a coordinator beside its workers: what ``agent_loop_manager_class`` names."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
from omegaconf import DictConfig
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tensordict import TensorDict
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ

from apportion.integrations.verl import estimators, logged
from apportion.integrations.verl.actor import CoordinatorActor
from apportion.integrations.verl.checkpoints import resumed_file
from apportion.integrations.verl.checks import check
from apportion.integrations.verl.dataset import prompt_of
from apportion.integrations.verl.messages import Dispatch, Place
from apportion.integrations.verl.settings import allocation_of
from apportion.integrations.verl.worker import AllocatedWorker

logger = logging.getLogger(__name__)

RESTARTS = 3
"""How often Ray starts the coordinator, or a worker, again."""

CALLS = 100_000
"""The most calls of the coordinator at a time: every worker has one under way, and reports beside it."""


class AllocatedAgentLoopManager(AgentLoopManagerTQ):  # type: ignore[misc]
    """Hands the trainer's rows to the workers, and their prompts to the coordinator, which orders the rollouts.

    Raises ValueError where the configuration cannot work; ``python -m apportion.verl`` says so before Ray starts.
    """

    def __init__(self, config: DictConfig, *args: Any, **kwargs: Any) -> None:
        self.allocation = allocation_of(config)
        check(config, self.allocation)
        super().__init__(config, *args, **kwargs)
        estimators.register(
            self.allocation.weighting,
            config.actor_rollout_ref.actor.loss_agg_mode,
            kl_in_reward=bool(config.algorithm.use_kl_in_reward),
        )
        self.agent_loop_workers_class = ray.remote(max_restarts=RESTARTS)(AllocatedWorker)

    async def _init_agent_loop_workers(self) -> None:
        await super()._init_agent_loop_workers()
        self.names = await asyncio.gather(*(worker.name.remote() for worker in self.agent_loop_workers))
        journal = Path(self.config.trainer.default_local_dir).absolute() / "coordinator.journal"
        journal.unlink(missing_ok=True)
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options = {"max_restarts": RESTARTS, "max_task_retries": -1, "max_concurrency": CALLS}
        made = ray.remote(num_cpus=0, **options)(CoordinatorActor)
        self.coordinator = made.options(name=f"apportion_{uuid4().hex[:8]}", scheduling_strategy=here).remote(
            self.config, self.names, journal, resumed_file(self.config)
        )
        await self.coordinator.ready.remote()
        logged.through(self._metrics)

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Dispatches rows without waiting for their rollouts; those of training are a round of their own."""
        validate = "validate" in prompts and bool(prompts["validate"])
        chunks = prompts.chunk(len(self.agent_loop_workers))
        references = [ray.put(chunk) for chunk in chunks]
        names = self._seated(references)
        if not validate:
            owners = tuple(name for name, chunk in zip(names, chunks, strict=True) for _ in range(len(chunk)))
            dispatch = Dispatch(int(prompts["global_steps"]), tuple(self._prompts(prompts)), owners)
            ray.get(self.coordinator.open.remote(dispatch, references))

    def _seated(self, chunks: Sequence[Any]) -> list[str]:
        """Names of the workers that took ``chunks``, one each; one that Ray is starting again is passed over."""
        workers = list(zip(self.names, self.agent_loop_workers, strict=True))
        taken = [worker.generate_sequences.remote(chunk) for (_, worker), chunk in zip(workers, chunks, strict=False)]
        return [self._taken(workers[i:] + workers[:i], chunk, taken[i]) for i, chunk in enumerate(chunks)]

    def _taken(self, workers: Sequence[tuple[str, Any]], chunk: Any, answer: Any) -> str:
        for (name, _), (_, other) in zip(workers, [*workers[1:], workers[0]], strict=True):
            try:
                ray.get(answer)
            except RayActorError as error:
                logger.warning("Worker %s does not answer, another takes its rows: %s", name, error)
                answer = other.generate_sequences.remote(chunk)
            else:
                return name
        raise RuntimeError(f"no agent-loop worker of {len(workers)} answers; see Ray's log for why they died")

    def _prompts(self, rows: TensorDict) -> Sequence[Any]:
        columns = {key: list(rows[key]) for key in ("uid", "raw_prompt", "data_source", "extra_info") if key in rows}
        each = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        return [prompt_of(row, self.allocation.id_key, data=Place(row["uid"], row["uid"])) for row in each]

    def _metrics(self) -> dict[str, float]:
        began = time.perf_counter()
        found: dict[str, float] = ray.get(self.coordinator.metrics.remote())
        return found | {"metrics_seconds": time.perf_counter() - began}
