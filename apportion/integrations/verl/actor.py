"""The coordinator as a Ray actor, and its workers: one call that never returns shows that a worker lives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig
from ray.exceptions import ActorDiedError, RayActorError

from apportion.allocators import Allocator
from apportion.integrations.verl.coordinator import Coordinator, collect_rarely
from apportion.integrations.verl.dataset import TrainingRows
from apportion.integrations.verl.journal import Journal
from apportion.integrations.verl.messages import Dispatch, Publication, Report, Task
from apportion.integrations.verl.outbox import Outbox
from apportion.integrations.verl.rows import publish
from apportion.integrations.verl.settings import allocation_of, by_row
from apportion.predictors import Predictor

logger = logging.getLogger(__name__)

REST_SECONDS = 1.0
"""Between two attempts to reach a worker that does not answer, which Ray may be starting again."""


class RayCrew:
    """Workers by name, those that live; tasks leave together. ``chunks`` are references to what was dispatched."""

    def __init__(self, by_row: bool) -> None:
        self._by_row = by_row
        self._outboxes: dict[str, Outbox[Task]] = {}
        self._handles: dict[str, Any] = {}
        self._chunks: dict[str, list[Any]] = {}
        self._own: set[asyncio.Task[None]] = set()
        self.report: Callable[[Sequence[Report]], None] = lambda reports: None
        """Who is told of what the crew carried out itself."""

    @property
    def living(self) -> list[str]:
        """Names of the workers that tasks can be sent to."""
        return list(self._handles)

    def join(self, name: str, handle: Any) -> None:
        """A worker more."""
        self._handles[name] = handle

        async def send(tasks: list[Task]) -> None:
            await handle.carry_out.remote(tasks)

        self._outboxes[name] = Outbox(send, partial(self._undelivered, name))

    def leave(self, name: str) -> None:
        """A worker less."""
        self._handles.pop(name, None)
        self._outboxes.pop(name, None)

    def keep(self, dispatch: Dispatch, chunks: list[Any]) -> None:
        """References to the rows of ``dispatch``, for a worker that takes them over."""
        self._chunks[dispatch.name] = chunks

    def forget(self, dispatch: Dispatch) -> None:
        self._chunks.pop(dispatch.name, None)

    def send(self, worker: str, task: Task) -> None:
        """Tasks of one that is gone wait until it is lost. The trainer hears from here of rows that nobody holds."""
        if worker in self._outboxes:
            self._outboxes[worker].put(task)
        elif not worker and isinstance(task, Publication):
            told = asyncio.create_task(self._publish(task))
            self._own.add(told)
            told.add_done_callback(self._own.discard)

    async def _publish(self, publication: Publication) -> None:
        try:
            await publish(publication, by_row=self._by_row)
        except Exception as error:
            logger.exception("Publication of %s failed", publication.host)
            self.report([Report(publication.id, error=repr(error))])
        else:
            self.report([Report(publication.id)])

    def move(self, worker: str, dispatch: Dispatch, hosts: Sequence[str]) -> bool:
        chunks = self._chunks.get(dispatch.name)
        if chunks is None or worker not in self._handles:
            return False
        self._handles[worker].take_over.remote(chunks, list(hosts))
        return True

    def _undelivered(self, worker: str, tasks: list[Task], error: Exception) -> None:
        """Sends again what did not arrive, unless ``worker`` is lost by then; what cannot be sent is a defect."""
        if isinstance(error, RayActorError):
            asyncio.get_running_loop().call_later(REST_SECONDS, self._again, worker, tasks)
        else:
            logger.error("Tasks cannot be sent to %s", worker, exc_info=error)
            self.report([Report(task.id, error=repr(error)) for task in tasks])

    def _again(self, worker: str, tasks: list[Task]) -> None:
        for task in tasks if worker in self._outboxes else []:
            self._outboxes[worker].put(task)


class CoordinatorActor:
    """What the manager, the workers and checkpoints call. Its constructor runs again where Ray restarts it.

    ``workers`` are names; ``journal`` is there after a restart, and goes before ``checkpoint``, the file to resume.
    """

    def __init__(self, config: DictConfig, workers: Sequence[str], journal: Path, checkpoint: Path | None) -> None:
        allocation = allocation_of(config)
        collect_rarely()
        tq.init()
        rows = TrainingRows(config, allocation.id_key)
        self._names = list(workers)
        self._checkpoint = checkpoint
        self._crew = RayCrew(by_row(config))
        self._coordinator = Coordinator(allocation, self._crew, Journal(journal), rows)
        self._crew.report = self._coordinator.report
        if _reads_texts(allocation.allocator):
            allocation.allocator.prepare(rows.prompts())
        self._watches: list[asyncio.Task[None]] = []
        self._began: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        """Returns when what was saved is loaded and all workers attend."""
        if self._began is None:
            self._began = asyncio.create_task(self._begin())
        await self._began

    async def lasts(self) -> None:
        """Never returns: a call under way shows that the coordinator lives, or will again."""
        await asyncio.Event().wait()

    async def open(self, dispatch: Dispatch, chunks: list[Any]) -> None:
        """Begins a round; ``chunks`` are references to its rows, for a worker that takes over another's."""
        await self.ready()
        self._crew.keep(dispatch, chunks)
        self._coordinator.open(dispatch)
        living = self._crew.living
        for worker in set(dispatch.workers) - set(living):  # it died with the rows that it had just taken
            if living or all(watch.done() for watch in self._watches):
                self._coordinator.lost(worker, living)

    async def report(self, reports: Sequence[Report]) -> None:
        """Takes reports of workers."""
        await self.ready()
        self._coordinator.report(reports)

    async def metrics(self) -> dict[str, float]:
        """What to log of the rounds that ended since the last call."""
        await self.ready()
        return self._coordinator.metrics()

    async def state(self) -> Mapping[str, Any]:
        """What a checkpoint holds."""
        await self.ready()
        return self._coordinator.state()

    async def _begin(self) -> None:
        for name in self._names:
            self._crew.join(name, ray.get_actor(name))
            self._watches.append(asyncio.create_task(self._watch(name)))
        await asyncio.sleep(0)  # so that every worker is attended to before its first task
        if self._coordinator.journal.path.exists():
            logger.warning("The coordinator was restarted; it goes on from %s", self._coordinator.journal.path)
            self._coordinator.replay()
        elif self._checkpoint is not None:
            self._coordinator.load(torch.load(self._checkpoint, weights_only=False))

    async def _watch(self, name: str) -> None:
        """Attends to a worker for as long as it lives, through its restarts."""
        handle = ray.get_actor(name)
        own = ray.get_runtime_context().current_actor
        while True:
            try:
                await handle.attend.remote(own)
            except RayActorError as error:
                if self._coordinator.busy:
                    logger.error("Worker %s died; others take over", name, exc_info=error)
                self._crew.leave(name)
                if self._crew.living:
                    self._coordinator.lost(name, self._crew.living)
            if not await _back(handle):
                self._coordinator.lost(name, self._crew.living)
                return
            self._crew.join(name, handle)
            self._coordinator.lost(name, [name])  # what no other was there to take


async def _back(handle: Any) -> bool:
    """Whether a worker that died was started again; False where it is gone for good."""
    while True:
        try:
            await handle.name.remote()
        except ActorDiedError:
            return False
        except RayActorError:
            await asyncio.sleep(REST_SECONDS)
        else:
            return True


def _reads_texts(allocator: Allocator) -> bool:
    predictor = getattr(allocator, "predictor", None)
    return predictor is not None and type(predictor).prepare is not Predictor.prepare
