"""The coordinator's actor on one core, and what many workers ask of it through Ray: reports, and the tasks that follow.

verl and the TransferQueue are left out: the actor's constructor, which takes verl's configuration, and the watch over
workers are other ones here; what takes reports, and sends tasks, is the actor's own.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray

from apportion.integrations.verl.actor import CoordinatorActor, RayCrew
from apportion.integrations.verl.coordinator import Coordinator, collect_rarely
from apportion.integrations.verl.journal import Journal
from apportion.integrations.verl.messages import Dispatch, Order, Publication, Report, place_of
from apportion.integrations.verl.settings import Allocation
from benchmarks.verl_load_answers import ROLLOUTS, Answers, worker_name
from benchmarks.verl_load_clients import Client, Server, stay

NOTHING = "no coordinator"
"""An actor that decides nothing, for what Ray takes by itself."""

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Served:
    """A dispatch through Ray: ``seconds`` from its opening to its end, and ``cpu_seconds`` of the actor's process.

    ``calls`` brought the ``reports``; ``latencies`` are from a report to the next task of its prompt.
    """

    reports: int
    calls: int
    seconds: float
    cpu_seconds: float
    latencies: tuple[float, ...]

    @property
    def rate(self) -> float:
        """Reports a second."""
        return self.reports / self.seconds

    @property
    def each_seconds(self) -> float:
        """Processor time of a report."""
        return self.cpu_seconds / self.reports

    @property
    def mean_latency(self) -> float:
        """Seconds from a report to the next task."""
        return float(np.mean(self.latencies))

    def latency(self, share: float) -> float:
        """Seconds that ``share`` of the reports do not exceed."""
        return float(np.quantile(self.latencies, share))


class Crew(RayCrew):
    """``RayCrew`` that says when a dispatch is over."""

    def __init__(self) -> None:
        super().__init__(by_row=True)
        self.over = asyncio.Event()

    def forget(self, dispatch: Dispatch) -> None:
        super().forget(dispatch)
        self.over.set()


class Nothing:
    """In place of a coordinator: an order and an empty publication for every prompt, and no decision or journal."""

    error = None

    def __init__(self, crew: RayCrew) -> None:
        self.crew = crew
        self.left: dict[str, str] = {}

    def open(self, dispatch: Dispatch) -> None:
        """Orders the rollouts of all prompts."""
        self.dispatch = dispatch
        for prompt, worker in zip(dispatch.prompts, dispatch.workers, strict=True):
            place = place_of(prompt)
            self.left[place.host] = worker
            self.crew.send(worker, Order(f"{place.host}:1", place, tuple(range(ROLLOUTS))))

    def report(self, reports: Sequence[Report]) -> None:
        """Publishes prompts whose rollouts are there."""
        for report in reports:
            host, _, told = report.id.partition(":")
            if told == "1":
                self.crew.send(self.left[host], Publication(f"{host}:published", host, (), (), "finished"))
            else:
                del self.left[host]
        if not self.left:
            self.crew.forget(self.dispatch)


class LoadedActor(CoordinatorActor):
    """The coordinator's actor, which counts what it is asked; ``clients`` stand for its ``workers``."""

    def __init__(self, workers: Sequence[str], clients: Sequence[Any], core: int) -> None:
        stay([core])
        collect_rarely()
        self._folder = tempfile.TemporaryDirectory()
        self._names, self._clients = list(workers), list(clients)
        self.reports = self.calls = 0

    async def begin(self, allocation: Allocation | None) -> None:
        """Begins anew, as after a restart without anything saved; without an allocation there is nothing to decide."""
        self._crew, journal = Crew(), Journal(Path(self._folder.name) / "journal")
        journal.path.unlink(missing_ok=True)
        coordinator = Nothing(self._crew) if allocation is None else Coordinator(allocation, self._crew, journal)
        self._coordinator: Any = coordinator
        self._crew.report = self._coordinator.report
        self._began = None
        await self.ready()

    async def report(self, reports: Sequence[Report]) -> None:
        """Takes reports of workers."""
        self.reports += len(reports)
        self.calls += 1
        await super().report(reports)

    async def over(self) -> None:
        """Returns when the dispatch is over; raises what ended it."""
        await self._crew.over.wait()
        if self._coordinator.error is not None:
            raise RuntimeError(self._coordinator.error)

    async def _begin(self) -> None:
        for i, name in enumerate(self._names):
            self._crew.join(name, self._clients[i % len(self._clients)])


@dataclass
class Workplace:
    """An actor on one core and ``count`` clients on the others, for dispatches one after the other."""

    workers: int
    count: int

    def __post_init__(self) -> None:
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
        client, actor = ray.remote(num_cpus=0)(Client), ray.remote(num_cpus=0)(Server)
        names = [worker_name(i) for i in range(self.workers)]
        self.clients = [client.remote(cores[1:] or cores) for _ in range(self.count)]
        self.actor = actor.remote(names, self.clients, cores[0])

    def served(self, name: str, prompts: int, seed: int, rate: float | None = None) -> Served:
        """One dispatch under the allocator ``name``, or ``NOTHING``.

        There are ``rate`` reports a second in all, or as many as may be.
        """
        answers = Answers(prompts, self.workers, seed)
        dispatch, each = answers.dispatch(), None if rate is None else rate / self.count
        ray.get(self.actor.begin.remote(None if name == NOTHING else Allocation(allocator=answers.learnt(name))))
        ray.get([client.attend.remote(self.actor, answers, each) for client in self.clients])
        before = ray.get(self.actor.spent.remote())
        started = time.perf_counter()
        ray.get(self.actor.open.remote(dispatch, []))
        ray.get(self.actor.over.remote())
        seconds = time.perf_counter() - started
        reports, calls, cpu_seconds = np.subtract(ray.get(self.actor.spent.remote()), before).tolist()
        found = ray.get([client.latencies.remote() for client in self.clients])
        return Served(int(reports), int(calls), seconds, cpu_seconds, tuple(each for own in found for each in own))


@contextmanager
def running(workers: int, clients: int) -> Iterator[Workplace]:
    """A workplace on a Ray of its own, which has served a dispatch to warm up."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        ray.init(
            num_cpus=1,
            include_dashboard=False,
            object_store_memory=500_000_000,
            log_to_driver=False,
            logging_level="error",
            _temp_dir=folder,
        )
        try:
            workplace = Workplace(workers, clients)
            workplace.served("uniform", workers, seed=0)
            yield workplace
        finally:
            ray.shutdown()
