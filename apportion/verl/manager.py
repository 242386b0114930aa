"""verl's agent-loop manager with a coordinator beside its workers: set it as ``agent_loop_manager_class``."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, TypeVar

import ray
from omegaconf import DictConfig
from tensordict import TensorDict
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from apportion.types import Prompt
from apportion.verl import estimators, sampler, tracking
from apportion.verl.actor_watch import engine_actors, queue_actors
from apportion.verl.building import coordinator_of
from apportion.verl.checks import check
from apportion.verl.coordinator.messages import RowAddress, TrainerRequest, TrainerUpdate
from apportion.verl.dataset import prompt_of
from apportion.verl.loop_thread import LoopThread
from apportion.verl.phases import PhaseWatch
from apportion.verl.reports import GROUP
from apportion.verl.seam import call_before
from apportion.verl.settings import allocation_of
from apportion.verl.streaming import StreamedReplayBuffer
from apportion.verl.worker import AllocatedWorker
from apportion.verl.workers import WorkerGroup

T = TypeVar("T")


class AllocatedAgentLoopManager(AgentLoopManagerTQ):  # type: ignore[misc]
    """Gives the trainer's rows to the workers and their prompts to the coordinator, which requests the rollouts.

    The coordinator lives in a thread of this process, the trainer's, and ends with it. A process has one at a time.

    Raises ValueError for a configuration that cannot work. ``python -m apportion.verl`` checks it before Ray starts.
    """

    latest: ClassVar["AllocatedAgentLoopManager | None"] = None

    def __init__(self, config: DictConfig, *args: Any, **kwargs: Any) -> None:
        self.allocation = allocation_of(config)
        check(config, self.allocation)
        if self.allocation.selection is not None and not sampler.ChosenRows.installed:
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
        self.agent_loop_workers_class = ray.remote(max_restarts=-1, concurrency_groups={GROUP: 1})(AllocatedWorker)

    async def _init_agent_loop_workers(self) -> None:
        await super()._init_agent_loop_workers()
        self._handles = {f"agent_loop_worker_{i}": worker for i, worker in enumerate(self.agent_loop_workers)}
        AllocatedAgentLoopManager.latest = self
        self._coordinator, self._phase = coordinator_of(self.config, self.allocation), PhaseWatch()
        self._thread = LoopThread(lambda error: self._coordinator.fail(f"the coordinator failed: {error!r}"))
        self._workers = self._thread.call(self._start(), "find the workers", self.allocation.limits.answer)
        # the trainer looks there for finished prompts: so the allocator's error ends the run, not what is missing then
        call_before(ReplayBuffer, "_sync_metadata_from_transfer_queue", lambda buffer: self._look())
        tracking.log_metrics(self._metrics)
        sampler.ChosenRows.choose = partial(self._call, "choose prompts", self._coordinator.choose)
        StreamedReplayBuffer.next_update = self._next_update

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Hand out rows without waiting for their rollouts. Rows of training also begin a round."""
        validate = "validate" in prompts and bool(prompts["validate"])
        chunks = prompts.chunk(len(self.agent_loop_workers))
        holders = tuple(name for name, chunk in zip(self._handles, chunks, strict=False) for _ in chunk["uid"])
        if validate:
            what, begin = "hand out a validation", self._coordinator.validate
            step, found = 0, [Prompt(uid, data=RowAddress(uid, uid)) for uid in prompts["uid"]]
        else:
            what, begin = "begin a round", self._coordinator.open
            step, found = int(prompts["global_steps"]), self._prompts(prompts)
        request = TrainerRequest(step, tuple(found), holders, tuple(map(ray.put, chunks)))
        self._call(what, self._workers.hand_out, request, begin)

    def coordinator_state(self) -> dict[str, Any]:
        """Return the coordinator's state, for a checkpoint."""
        return self._call("save its state", self._coordinator.state)

    def check(self) -> None:
        """Raise RuntimeError if the run cannot continue."""
        self._coordinator.check()

    async def _start(self) -> WorkerGroup:
        """Return the workers once each has said where it runs."""
        others = queue_actors() + engine_actors(self.llm_client, self.reward_loop_worker_handles)
        group = WorkerGroup(self._coordinator, self._handles, others, self._phase)
        await group.start()
        return group

    def _call(self, what: str, function: Callable[..., T], *args: Any) -> T:
        """Return the result of ``function``, which is called in the coordinator's thread."""

        async def called() -> T:
            return function(*args)

        return self._thread.call(called(), what, self.allocation.limits.answer)

    def _prompts(self, rows: TensorDict) -> list[Prompt]:
        columns = {key: list(rows[key]) for key in ("uid", "raw_prompt", "data_source", "extra_info") if key in rows}
        each = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        id_key, rate_key = self.allocation.id_key, self.allocation.rate_key
        return [prompt_of(row, id_key, RowAddress(row["uid"], row["uid"]), rate_key) for row in each]

    def _look(self) -> None:
        """Raise RuntimeError if the run cannot continue. Called whenever the trainer looks for prompts."""
        self._phase.looked()
        self.check()

    def _next_update(self, done: bool, queue: set[str] | None) -> TrainerUpdate:
        self._phase.looked()
        return self._call("give the next update", self._coordinator.next_update, done, queue)

    def _metrics(self) -> dict[str, float]:
        return self._call("give its metrics", self._coordinator.metrics)
