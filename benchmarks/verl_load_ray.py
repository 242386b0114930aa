"""Measure the coordinator's actor on one core while many workers report to it through Ray and take its tasks."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import ray

from apportion.verl.coordinator.settings import VerlAllocation
from benchmarks.common import ROOT
from benchmarks.verl_load_answers import Answers, worker_name
from benchmarks.verl_load_clients import Client
from benchmarks.verl_load_server import Server

NOTHING = "no coordinator"
"""An actor that decides nothing. It shows what Ray alone costs."""


@dataclass(frozen=True)
class Served:
    """The cost of a request through Ray: ``seconds`` from begin to end, and ``cpu_seconds`` of the actor's process.

    ``calls`` is the number of calls that carried the ``reports``. ``latencies`` are the seconds from a report to the
    next task of its prompt.
    """

    reports: int
    calls: int
    seconds: float
    cpu_seconds: float
    latencies: tuple[float, ...]

    @property
    def rate(self) -> float:
        """The number of reports a second."""
        return self.reports / self.seconds

    @property
    def each_seconds(self) -> float:
        """The processor time of one report."""
        return self.cpu_seconds / self.reports

    @property
    def mean_latency(self) -> float:
        """The mean number of seconds from a report to the next task."""
        return float(np.mean(self.latencies))

    def latency(self, share: float) -> float:
        """Return the latency that ``share`` of the reports do not exceed, in seconds."""
        return float(np.quantile(self.latencies, share))


@dataclass
class Workplace:
    """An actor on one core, and ``count`` clients on the other cores."""

    workers: int
    count: int

    def __post_init__(self) -> None:
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
        client, actor = ray.remote(num_cpus=0)(Client), ray.remote(num_cpus=0)(Server)
        names = [worker_name(i) for i in range(self.workers)]
        self.clients = [client.remote(cores[1:] or cores) for _ in range(self.count)]
        self.actor = actor.remote(names, self.clients, cores[0])

    def served(self, name: str, prompts: int, seed: int, rate: float | None = None) -> Served:
        """Run one request under the allocator ``name``, or ``NOTHING``.

        The clients send ``rate`` reports a second together, or as many as possible if it is None.
        """
        answers = Answers(prompts, self.workers, seed)
        request, each = answers.request(), None if rate is None else rate / self.count
        ray.get(self.actor.begin.remote(None if name == NOTHING else VerlAllocation(allocator=answers.learnt(name))))
        ray.get([client.attend.remote(self.actor, answers, each) for client in self.clients])
        before = ray.get(self.actor.spent.remote())
        started = time.perf_counter()
        ray.get(self.actor.open.remote(request, []))
        ray.get(self.actor.over.remote())
        seconds = time.perf_counter() - started
        reports, calls, cpu_seconds = np.subtract(ray.get(self.actor.spent.remote()), before).tolist()
        found = ray.get([client.latencies.remote() for client in self.clients])
        return Served(int(reports), int(calls), seconds, cpu_seconds, tuple(each for own in found for each in own))


@contextmanager
def running(workers: int, clients: int) -> Iterator[Workplace]:
    """Start Ray and a workplace that has run one request to warm up; stop Ray at the end."""
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
