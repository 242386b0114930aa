"""Processes that stand for many workers each: they take orders of a coordinator, and report without sampling.

Whoever holds an actor's handle imports its class: verl takes seconds to import, which the clients are spared.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from apportion.integrations.verl.messages import Dispatch, Report, Task
from apportion.integrations.verl.outbox import Outbox
from benchmarks.verl_load_answers import Answers


class Server:
    """``LoadedActor``, which is imported in its own process alone."""

    def __init__(self, *arguments: Any) -> None:
        from benchmarks.verl_load_ray import LoadedActor  # noqa: PLC0415 - takes verl

        self._actor = LoadedActor(*arguments)

    async def begin(self, allocation: Any) -> None:
        """As the actor's, like the others."""
        await self._actor.begin(allocation)

    async def open(self, dispatch: Dispatch, chunks: list[Any]) -> None:
        """Begins a round."""
        await self._actor.open(dispatch, chunks)

    async def report(self, reports: Sequence[Report]) -> None:
        """Takes reports of workers."""
        await self._actor.report(reports)

    async def over(self) -> None:
        """Returns when the dispatch is over."""
        await self._actor.over()

    async def spent(self) -> tuple[int, int, float]:
        """Reports, calls, processor seconds."""
        return self._actor.reports, self._actor.calls, time.process_time()


class Client:
    """Carries out what ``workers`` of a coordinator are sent; each has an outbox of its own, as a worker has.

    It answers at once, or ``rate`` times a second at random moments, any of what it was sent: a Poisson process for as
    long as there is anything.
    """

    def __init__(self, cores: Sequence[int]) -> None:
        stay(cores)

    async def attend(self, coordinator: Any, answers: Answers, rate: float | None) -> None:
        """Reports to ``coordinator`` from now on."""
        self._coordinator, self._answers, self._rate = coordinator, answers, rate
        self._rng = np.random.default_rng([answers.seed, os.getpid()])
        self._outboxes: dict[str, Outbox[Report]] = {}
        self._waiting: list[Task] = []
        self._working: asyncio.Task[None] | None = None
        self._reported: dict[str, float] = {}
        self._latencies: list[float] = []

    async def carry_out(self, tasks: Sequence[Task]) -> None:
        """Takes ``tasks``; reports follow."""
        now = time.perf_counter()
        for task in tasks:
            if task.host in self._reported:
                self._latencies.append(now - self._reported.pop(task.host))
        if self._rate is None:
            for task in tasks:
                self._report(task)
            return
        self._waiting += tasks
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work(self._rate))

    async def latencies(self) -> list[float]:
        """Seconds from a report to the next task for its prompt, since ``attend``."""
        return self._latencies

    async def _work(self, rate: float) -> None:
        due = time.perf_counter()
        while self._waiting:
            due += self._rng.exponential(1 / rate)
            await asyncio.sleep(due - time.perf_counter())
            place = int(self._rng.integers(len(self._waiting)))
            self._waiting[place], self._waiting[-1] = self._waiting[-1], self._waiting[place]
            self._report(self._waiting.pop())

    def _report(self, task: Task) -> None:
        worker = self._answers.worker_of(task.host)
        if worker not in self._outboxes:
            self._outboxes[worker] = Outbox(self._send, self._failed)
        report = self._answers.report(task)
        self._reported[task.host] = time.perf_counter()
        self._outboxes[worker].put(report)

    async def _send(self, reports: list[Report]) -> None:
        await self._coordinator.report.remote(reports)

    def _failed(self, reports: list[Report], error: Exception) -> None:
        raise error


def stay(cores: Sequence[int]) -> None:
    """Keeps all threads of this process to ``cores``, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores)
