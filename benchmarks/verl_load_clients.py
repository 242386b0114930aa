"""Processes that each stand for many workers: they take the coordinator's orders and report without sampling."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from apportion.verl.coordinator.sender import BatchedSender

from apportion.verl.coordinator.messages import TaskResult, WorkerTask
from benchmarks.verl_load_answers import Answers


class Client:
    """Answers the tasks of many workers, each with its own sender.

    It answers each task at once. With a ``rate`` it answers random waiting tasks as a Poisson process of ``rate`` a
    second instead.
    """

    def __init__(self, cores: Sequence[int]) -> None:
        stay(cores)

    async def attend(self, coordinator: Any, answers: Answers, rate: float | None) -> None:
        """Report to ``coordinator`` from now on."""
        self._coordinator, self._answers, self._rate = coordinator, answers, rate
        self._rng = np.random.default_rng([answers.seed, os.getpid()])
        self._senders: dict[str, BatchedSender[TaskResult]] = {}
        self._waiting: list[WorkerTask] = []
        self._working: asyncio.Task[None] | None = None
        self._reported: dict[str, float] = {}
        self._latencies: list[float] = []

    async def carry_out(self, tasks: Sequence[WorkerTask]) -> None:
        """Take ``tasks``. Their reports follow later."""
        now = time.perf_counter()
        for task in tasks:
            if task.uid in self._reported:
                self._latencies.append(now - self._reported.pop(task.uid))
        if self._rate is None:
            for task in tasks:
                self._report(task)
            return
        self._waiting += tasks
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work(self._rate))

    async def latencies(self) -> list[float]:
        """Return the seconds from each report to the next task of its prompt, since ``attend``."""
        return self._latencies

    async def _work(self, rate: float) -> None:
        due = time.perf_counter()
        while self._waiting:
            due += self._rng.exponential(1 / rate)
            await asyncio.sleep(due - time.perf_counter())
            place = int(self._rng.integers(len(self._waiting)))
            self._waiting[place], self._waiting[-1] = self._waiting[-1], self._waiting[place]
            self._report(self._waiting.pop())

    def _report(self, task: WorkerTask) -> None:
        worker = self._answers.worker_of(task.uid)
        if worker not in self._senders:
            self._senders[worker] = BatchedSender(self._send, self._failed)
        report = self._answers.report(task)
        self._reported[task.uid] = time.perf_counter()
        self._senders[worker].put(report)

    async def _send(self, reports: list[TaskResult]) -> None:
        await self._coordinator.receive.remote(reports)

    def _failed(self, reports: list[TaskResult], error: Exception) -> None:
        raise error


def stay(cores: Sequence[int]) -> None:
    """Keep all threads of this process on ``cores``, if the system supports it."""
    if hasattr(os, "sched_setaffinity"):
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores)
