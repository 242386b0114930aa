"""verl's agent-loop manager with a coordinator beside its workers: set it as ``agent_loop_manager_class``."""

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
from omegaconf import DictConfig
from ray.exceptions import GetTimeoutError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tensordict import TensorDict
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ

from apportion.verl import estimators, sampler, tracking
from apportion.verl.actor import CoordinatorActor
from apportion.verl.checkpoints import resumed_file
from apportion.verl.checks import check
from apportion.verl.coordinator.messages import RowAddress, RowsRequest, TrainerRequest
from apportion.verl.dataset import prompt_of
from apportion.verl.settings import allocation_of
from apportion.verl.worker import AllocatedWorker

logger = logging.getLogger(__name__)

RESTARTS = 3
"""How often Ray restarts the coordinator or a worker."""

CHOICE_SECONDS = 1800.0
"""How long the trainer waits for the choice of a batch. A restarted coordinator first loads the data and its state."""

CALLS = 100_000
"""Maximum number of concurrent calls of the coordinator. Every worker keeps one open and sends results beside it."""


class AllocatedAgentLoopManager(AgentLoopManagerTQ):  # type: ignore[misc]
    """Gives the trainer's rows to the workers and their prompts to the coordinator, which requests the rollouts.

    Raises ValueError for a configuration that cannot work. ``python -m apportion.verl`` checks it before Ray starts.
    """

    def __init__(self, config: DictConfig, *args: Any, **kwargs: Any) -> None:
        self.allocation = allocation_of(config)
        check(config, self.allocation)
        if self.allocation.selection is not None and not sampler.installed():
            raise ValueError(
                "allocation.selection needs the command python -m apportion.verl, got it under another, whose trainer "
                "has made its data loader with verl's own sampler; use that command, or leave selection out"
            )
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
        actor = ray.remote(num_cpus=0, **options)(CoordinatorActor)
        self.coordinator = actor.options(name=f"apportion_{uuid4().hex[:8]}", scheduling_strategy=here).remote(
            self.config, self.names, journal, resumed_file(self.config)
        )
        await self.coordinator.ready.remote()
        tracking.log_metrics(self._metrics)
        sampler.ChosenRows.choose = self._choose

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Hand out rows without waiting for their rollouts. Rows of training also begin a round."""
        validate = "validate" in prompts and bool(prompts["validate"])
        chunks = prompts.chunk(len(self.agent_loop_workers))
        references = [ray.put(chunk) for chunk in chunks]
        names = self._hand_out(references)
        if not validate:
            owners = tuple(name for name, chunk in zip(names, chunks, strict=True) for _ in range(len(chunk)))
            request = TrainerRequest(int(prompts["global_steps"]), tuple(self._prompts(prompts)), owners)
            ray.get(self.coordinator.open.remote(request, references))

    def _hand_out(self, chunks: Sequence[Any]) -> list[str]:
        """Give each worker one of ``chunks``. Return who took each, since another worker replaces a dead one."""
        workers = list(zip(self.names, self.agent_loop_workers, strict=True))
        answers = [worker.generate_sequences.remote(chunk) for (_, worker), chunk in zip(workers, chunks, strict=False)]
        return [self._taker(workers[i:] + workers[:i], chunk, answers[i]) for i, chunk in enumerate(chunks)]

    def _taker(self, workers: Sequence[tuple[str, Any]], chunk: Any, answer: Any) -> str:
        """Return the name of the first of ``workers`` that takes ``chunk``; ``answer`` is that of the first."""
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
        id_key, rate_key = self.allocation.id_key, self.allocation.rate_key
        return [prompt_of(row, id_key, RowAddress(row["uid"], row["uid"]), rate_key) for row in each]

    def _choose(self, request: RowsRequest) -> list[int]:
        try:
            rows: list[int] = ray.get(self.coordinator.choose.remote(request), timeout=CHOICE_SECONDS)
        except GetTimeoutError as error:
            raise RuntimeError(
                f"the coordinator must choose prompts within {CHOICE_SECONDS:g} seconds, got no answer; see its log, "
                "and use a selection or predictor that is faster on this data set"
            ) from error
        return rows

    def _metrics(self) -> dict[str, float]:
        began = time.perf_counter()
        found: dict[str, float] = ray.get(self.coordinator.metrics.remote())
        return found | {"metrics_seconds": time.perf_counter() - began}
