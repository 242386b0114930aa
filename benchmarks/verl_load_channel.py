"""Measure the coordinator behind its channel, with client processes that stand for many workers.

The coordinator, its channel and each worker's channel are the real ones. Ray, which starts workers and reports their
deaths, and generation are left out.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from apportion.verl.channel import ChannelAddress, CoordinatorChannel, WorkerChannel
from apportion.verl.coordinator.messages import TaskResult, TrainerRequest, WorkerTask
from apportion.verl.coordinator.service import Coordinator
from apportion.verl.coordinator.settings import VerlAllocation
from benchmarks.verl_load_answers import Answers, worker_name

START_SECONDS, RUN_SECONDS = 300.0, 300.0
"""How long the clients may take to connect, and how long a request may take."""


@dataclass(frozen=True)
class Served:
    """The cost of a request through the channel: ``seconds`` from its begin to its end.

    ``loop_seconds`` is processor time of the coordinator's thread, ``cpu_seconds`` that of its process, with ZeroMQ's
    thread, and ``client_seconds`` that of all clients. ``calls`` is the number of calls that brought the ``reports``.
    ``latencies`` are the seconds from a report to the next task of its prompt.
    """

    reports: int
    calls: int
    seconds: float
    loop_seconds: float
    cpu_seconds: float
    client_seconds: float
    latencies: tuple[float, ...]

    @property
    def rate(self) -> float:
        """The number of reports a second."""
        return self.reports / self.seconds

    def latency(self, share: float) -> float:
        """Return the latency that ``share`` of the reports do not exceed, in seconds."""
        return float(np.quantile(self.latencies, share))


class ChannelPool:
    """Carries tasks through a channel, as a ``WorkerGroup`` does. ``over`` is set when the request is over."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        coordinator.pool = self
        self.channel = CoordinatorChannel("127.0.0.1", self._receive)
        self.over = asyncio.Event()
        self.reports = self.calls = 0

    def send(self, worker: str, task: WorkerTask) -> None:
        """Send a task to a worker."""
        self.channel.put(worker, task)

    def hand_over(self, worker: str, request: TrainerRequest, uids: Sequence[str]) -> None:
        """Refuse, because no worker dies here."""
        raise RuntimeError(f"no worker of the benchmark may be lost, got {worker}")

    def forget_rows(self, request: TrainerRequest) -> None:
        """End the request."""
        self.over.set()

    def _receive(self, worker: str, results: Sequence[TaskResult]) -> None:
        self.reports += len(results)
        self.calls += 1
        self._coordinator.receive(results)
        if self._coordinator.error is not None:
            self.over.set()


class Client:
    """Answers the tasks of many workers, each with its own channel.

    It answers each task at once. With a ``rate`` it answers random waiting tasks as a Poisson process of ``rate`` a
    second instead.
    """

    def __init__(self, answers: Answers, rate: float | None) -> None:
        self._answers, self._rate = answers, rate
        self._rng = np.random.default_rng([answers.seed, os.getpid()])
        self._channels: dict[str, WorkerChannel] = {}
        self._waiting: list[WorkerTask] = []
        self._working: asyncio.Task[None] | None = None
        self._reported: dict[str, float] = {}
        self.latencies: list[float] = []

    def connect(self, address: ChannelAddress, names: Sequence[str]) -> None:
        """Begin to work as the workers ``names``."""
        self._channels = {name: WorkerChannel(address, name, self._take) for name in names}

    def close(self) -> None:
        """Close all channels."""
        for channel in self._channels.values():
            channel.close()

    def _take(self, tasks: Sequence[WorkerTask]) -> None:
        now = time.perf_counter()
        for task in tasks:
            if task.uid in self._reported:
                self.latencies.append(now - self._reported.pop(task.uid))
        if self._rate is None:
            for task in tasks:
                self._report(task)
            return
        self._waiting += tasks
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work(self._rate))

    async def _work(self, rate: float) -> None:
        due = time.perf_counter()
        while self._waiting:
            due += self._rng.exponential(1 / rate)
            await asyncio.sleep(due - time.perf_counter())
            place = int(self._rng.integers(len(self._waiting)))
            self._waiting[place], self._waiting[-1] = self._waiting[-1], self._waiting[place]
            self._report(self._waiting.pop())

    def _report(self, task: WorkerTask) -> None:
        report = self._answers.report(task)
        self._reported[task.uid] = time.perf_counter()
        self._channels[self._answers.worker_of(task.uid)].put(report)


def served_apart(name: str, prompts: int, workers: int, clients: int, seed: int, rate: float | None = None) -> Served:
    """Return the cost of one request under the allocator ``name``, with the coordinator in a process of its own.

    The clients send ``rate`` reports a second together, or as many as possible if it is None.
    """
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_serve, args=(there, name, prompts, workers, clients, seed, rate))
    process.start()
    there.close()
    try:
        found: Served = here.recv()
    except EOFError as error:
        raise RuntimeError(f"the coordinator of {name} must return its cost, got an error; see above") from error
    finally:
        process.join()
    return found


def _serve(
    pipe: Connection, name: str, prompts: int, workers: int, clients: int, seed: int, rate: float | None
) -> None:
    answers = Answers(prompts, workers, seed)
    pipe.send(asyncio.run(_served(name, answers, clients, rate)))


async def _served(name: str, answers: Answers, clients: int, rate: float | None) -> Served:
    coordinator = Coordinator(VerlAllocation(allocator=answers.learnt(name)))
    pool, request = ChannelPool(coordinator), answers.request()
    names = [worker_name(i) for i in range(answers.workers)]
    connected = asyncio.gather(*(pool.channel.add(each) for each in names))
    await asyncio.sleep(0)  # because a message of a worker that was not added is ignored
    context, pipes = multiprocessing.get_context("spawn"), []
    for i in range(clients):
        here, there = context.Pipe()
        each = None if rate is None else rate / clients
        arguments = (there, pool.channel.address, names[i::clients], answers, each)
        context.Process(target=_attend, args=arguments, daemon=True).start()
        pipes.append(here)
    await asyncio.wait_for(connected, START_SECONDS)
    started, loop_seconds, cpu_seconds = time.perf_counter(), time.thread_time(), time.process_time()
    coordinator.open(request)
    await asyncio.wait_for(pool.over.wait(), RUN_SECONDS)
    seconds = time.perf_counter() - started
    loop_seconds, cpu_seconds = time.thread_time() - loop_seconds, time.process_time() - cpu_seconds
    coordinator.check()
    client_seconds, latencies = 0.0, list[float]()
    for here in pipes:
        here.send(None)
        spent, own = await asyncio.to_thread(here.recv)
        client_seconds += spent
        latencies += own
    pool.channel.close()
    return Served(pool.reports, pool.calls, seconds, loop_seconds, cpu_seconds, client_seconds, tuple(latencies))


def _attend(pipe: Connection, address: ChannelAddress, names: Sequence[str], answers: Answers, rate: Any) -> None:
    """Answer tasks until a message comes; then send the processor seconds and the latencies."""

    async def attended() -> None:
        client = Client(answers, rate)
        client.connect(address, names)
        before = time.process_time()
        await asyncio.to_thread(pipe.recv)
        pipe.send((time.process_time() - before, client.latencies))
        client.close()

    asyncio.run(attended())
