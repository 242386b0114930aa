"""The coordinator's actor without verl and the TransferQueue.

The constructor, which takes verl's configuration, and the watch over workers are replaced. The code that takes reports
and sends tasks is the actor's own.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from apportion.verl.actor import CoordinatorActor, RayWorkerPool
from apportion.verl.coordinator.journal import EventJournal

from apportion.verl.coordinator.messages import CommitTask, RolloutTask, TaskResult, TrainerRequest, address_of
from apportion.verl.coordinator.service import Coordinator, collect_rarely
from apportion.verl.coordinator.settings import VerlAllocation
from benchmarks.verl_load_answers import ROLLOUTS
from benchmarks.verl_load_clients import stay


class LoadPool(RayWorkerPool):
    """A ``RayWorkerPool`` with an event that is set when a request is over."""

    def __init__(self) -> None:
        super().__init__(by_row=True)
        self.over = asyncio.Event()

    def forget_rows(self, request: TrainerRequest) -> None:
        super().forget_rows(request)
        self.over.set()


class Nothing:
    """A stand-in for the coordinator: two tasks for each prompt, without a decision or a journal."""

    error = None

    def __init__(self, pool: RayWorkerPool) -> None:
        self.pool = pool
        self.left: dict[str, str] = {}

    def open(self, request: TrainerRequest) -> None:
        """Request the rollouts of all prompts."""
        self.request = request
        for prompt, worker in zip(request.prompts, request.workers, strict=True):
            address = address_of(prompt)
            self.left[address.uid] = worker
            self.pool.send(worker, RolloutTask(f"{address.uid}:1", address, tuple(range(ROLLOUTS))))

    def receive(self, reports: Sequence[TaskResult]) -> None:
        """Commit each prompt whose rollouts have arrived."""
        for report in reports:
            uid, _, told = report.id.partition(":")
            if told == "1":
                self.pool.send(self.left[uid], CommitTask(f"{uid}:commit", uid, (), (), "finished"))
            else:
                del self.left[uid]
        if not self.left:
            self.pool.forget_rows(self.request)


class LoadedActor(CoordinatorActor):
    """The coordinator's actor with counters of reports and calls; ``clients`` stand for its ``workers``."""

    def __init__(self, workers: Sequence[str], clients: Sequence[Any], core: int) -> None:
        stay([core])
        collect_rarely()
        self._folder = tempfile.TemporaryDirectory()
        self._names, self._clients = list(workers), list(clients)
        self.reports = self.calls = 0

    async def begin(self, allocation: VerlAllocation | None) -> None:
        """Start a new coordinator, as after a restart without saved state; a ``Nothing`` if ``allocation`` is None."""
        self._pool, journal = LoadPool(), EventJournal(Path(self._folder.name) / "journal")
        journal.path.unlink(missing_ok=True)
        coordinator = Nothing(self._pool) if allocation is None else Coordinator(allocation, self._pool, journal)
        self._coordinator: Any = coordinator
        self._pool.receive = self._coordinator.receive
        self._start = None
        await self.ready()

    async def receive(self, reports: Sequence[TaskResult]) -> None:
        """Take reports of workers."""
        self.reports += len(reports)
        self.calls += 1
        await super().receive(reports)

    async def over(self) -> None:
        """Return when the request is over. Raise the error that ended it, if there was one."""
        await self._pool.over.wait()
        if self._coordinator.error is not None:
            raise RuntimeError(self._coordinator.error)

    async def _begin(self) -> None:
        for i, name in enumerate(self._names):
            self._pool.add(name, self._clients[i % len(self._clients)])
