"""The coordinator as a Ray actor, and its pool of workers. A call that never returns shows that a worker lives."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ray
import transfer_queue as tq
from omegaconf import DictConfig
from ray.exceptions import ActorDiedError, RayActorError

from apportion.predictors import Predictor
from apportion.verl.checkpoints import load_into
from apportion.verl.coordinator.journal import EventJournal
from apportion.verl.coordinator.messages import CommitTask, RowsRequest, TaskResult, TrainerRequest, WorkerTask
from apportion.verl.coordinator.selection import PromptSelection
from apportion.verl.coordinator.sender import BatchedSender
from apportion.verl.coordinator.service import Coordinator, collect_rarely
from apportion.verl.coordinator.settings import VerlAllocation
from apportion.verl.dataset import TrainingPrompts
from apportion.verl.rows import commit_rows
from apportion.verl.settings import allocation_of, by_row

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
"""Time between two attempts to reach a worker that does not answer. Ray may be restarting it."""


class RayWorkerPool:
    """The living workers by name. Tasks are sent to them in batches."""

    def __init__(self, by_row: bool) -> None:
        self._by_row = by_row
        self._senders: dict[str, BatchedSender[WorkerTask]] = {}
        self._handles: dict[str, Any] = {}
        self._chunks: dict[str, list[Any]] = {}
        self._commits: set[asyncio.Task[None]] = set()
        self.receive: Callable[[Sequence[TaskResult]], None] = lambda results: None
        """Called with the results of commits that the pool carried out itself."""

    @property
    def living(self) -> list[str]:
        """The names of the workers that tasks can be sent to."""
        return list(self._handles)

    def add(self, name: str, handle: Any) -> None:
        """Register a worker."""
        self._handles[name] = handle

        async def send(tasks: list[WorkerTask]) -> None:
            await handle.carry_out.remote(tasks)

        self._senders[name] = BatchedSender(send, partial(self._handle_undelivered, name))

    def remove(self, name: str) -> None:
        """Remove a worker."""
        self._handles.pop(name, None)
        self._senders.pop(name, None)

    def keep_rows(self, request: TrainerRequest, chunks: list[Any]) -> None:
        """Keep references to the rows of ``request``, for a worker that takes them over."""
        self._chunks[request.id] = chunks

    def forget_rows(self, request: TrainerRequest) -> None:
        """Release the references to the rows of ``request``."""
        self._chunks.pop(request.id, None)

    def send(self, worker: str, task: WorkerTask) -> None:
        """Send ``task``. Drop it if the worker is gone, because the coordinator sends it again once it knows.

        Commits of rows that no worker holds are carried out here.
        """
        if worker in self._senders:
            self._senders[worker].put(task)
        elif not worker and isinstance(task, CommitTask):
            running = asyncio.create_task(self._commit(task))
            self._commits.add(running)
            running.add_done_callback(self._commits.discard)

    def hand_over(self, worker: str, request: TrainerRequest, uids: Sequence[str]) -> bool:
        """Have ``worker`` take over the rows of ``uids``. Return whether the rows are still available."""
        chunks = self._chunks.get(request.id)
        if chunks is None or worker not in self._handles:
            return False
        self._handles[worker].take_over.remote(chunks, list(uids))
        return True

    async def _commit(self, commit: CommitTask) -> None:
        try:
            await commit_rows(commit, by_row=self._by_row)
        except Exception as error:
            logger.exception("The commit of %s failed", commit.uid)
            self.receive([TaskResult(commit.id, error=repr(error))])
        else:
            self.receive([TaskResult(commit.id)])

    def _handle_undelivered(self, worker: str, tasks: list[WorkerTask], error: Exception) -> None:
        """Send tasks again later if ``worker`` did not answer. Any other error is a defect and fails the tasks."""
        if isinstance(error, RayActorError):
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._send_again, worker, tasks)
        else:
            logger.error("Tasks cannot be sent to %s", worker, exc_info=error)
            self.receive([TaskResult(task.id, error=repr(error)) for task in tasks])

    def _send_again(self, worker: str, tasks: list[WorkerTask]) -> None:
        for task in tasks if worker in self._senders else []:
            self._senders[worker].put(task)


class CoordinatorActor:
    """The coordinator, as the manager, the workers and checkpoints call it. Ray may restart it with its arguments.

    Args:
        config: verl's configuration.
        workers: the names of the workers.
        journal: the journal's path. The file only exists after a restart, and then takes precedence.
        checkpoint: the file to resume from, if any.
    """

    def __init__(self, config: DictConfig, workers: Sequence[str], journal: Path, checkpoint: Path | None) -> None:
        allocation = allocation_of(config)
        collect_rarely()
        tq.init()
        prompts = TrainingPrompts(config, allocation.id_key, allocation.rate_key)
        self._names = list(workers)
        self._checkpoint = checkpoint
        self._pool = RayWorkerPool(by_row(config))
        for learner in (allocation.allocator, allocation.baseline):
            if learner is not None and (allocation.selection is not None or _reads_texts(learner)):
                learner.prepare(prompts.all())
        selection = _selection(config, allocation, prompts)
        self._coordinator = Coordinator(allocation, self._pool, EventJournal(journal), prompts, selection)
        self._pool.receive = self._coordinator.receive
        self._watches: list[asyncio.Task[None]] = []
        self._start: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        """Return once saved state is loaded and all workers are attached."""
        if self._start is None:
            self._start = asyncio.create_task(self._begin())
        await self._start

    async def stay_alive(self) -> None:
        """Never return: an open call shows that the coordinator lives or is being restarted."""
        await asyncio.Event().wait()

    async def open(self, request: TrainerRequest, chunks: list[Any]) -> None:
        """Begin a round. ``chunks`` are references to its rows, for workers that take over those of a dead one."""
        await self.ready()
        self._pool.keep_rows(request, chunks)
        self._coordinator.open(request)
        living = self._pool.living
        for worker in set(request.workers) - set(living):  # it died with the rows that it had just taken
            if living or all(watch.done() for watch in self._watches):
                self._coordinator.lose(worker, living)

    async def choose(self, request: RowsRequest) -> list[int]:
        """Return the rows that the selector chooses for the trainer's next batch."""
        await self.ready()
        return self._coordinator.choose(request)

    async def receive(self, results: Sequence[TaskResult]) -> None:
        """Take results of workers."""
        await self.ready()
        self._coordinator.receive(results)

    async def metrics(self) -> dict[str, float]:
        """Return the metrics of the rounds that ended since the last call."""
        await self.ready()
        return self._coordinator.metrics()

    async def state(self) -> Mapping[str, Any]:
        """Return the state for a checkpoint."""
        await self.ready()
        return self._coordinator.state()

    async def _begin(self) -> None:
        for name in self._names:
            self._pool.add(name, ray.get_actor(name))
            self._watches.append(asyncio.create_task(self._watch(name)))
        await asyncio.sleep(0)  # so that every worker is watched before its first task
        if self._coordinator.journal.path.exists():
            logger.warning("The coordinator was restarted; it continues from %s", self._coordinator.journal.path)
            self._coordinator.replay()
        elif self._checkpoint is not None:
            load_into(self._coordinator, self._checkpoint)

    async def _watch(self, name: str) -> None:
        """Watch a worker through its restarts, until it is gone for good."""
        handle = ray.get_actor(name)
        own = ray.get_runtime_context().current_actor
        while True:
            try:
                await handle.attach.remote(own)
            except RayActorError as error:
                if self._coordinator.busy:
                    logger.error("Worker %s died; others take over", name, exc_info=error)
                self._pool.remove(name)
                if self._pool.living:
                    self._coordinator.lose(name, self._pool.living)
            if not await _is_restarted(handle):
                self._coordinator.lose(name, self._pool.living)
                return
            self._pool.add(name, handle)
            self._coordinator.lose(name, [name])  # it gets back what no other worker could take


def _reads_texts(learner: Any) -> bool:
    """Return whether ``learner`` has a predictor that embeds prompts."""
    predictor: Predictor | None = getattr(learner, "predictor", None)
    return predictor is not None and predictor.reads_texts


def _selection(config: DictConfig, allocation: VerlAllocation, prompts: TrainingPrompts) -> PromptSelection | None:
    if allocation.selection is None:
        return None
    size, seed = int(config.data.train_batch_size), int(config.data.get("seed") or 0)
    predictor: Predictor | None = getattr(allocation.allocator, "predictor", None)
    return PromptSelection(allocation.selection, prompts.in_order(), prompts.at, size, seed, predictor)


async def _is_restarted(handle: Any) -> bool:
    """Wait until Ray has restarted a dead worker. Return False if it is gone for good."""
    while True:
        try:
            await handle.name.remote()
        except ActorDiedError:
            return False
        except RayActorError:
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return True
