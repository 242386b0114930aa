"""Measure a coordinator alone in a process. Every task is answered at once, and the answers are not counted."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import pickle
import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from apportion.verl.coordinator.messages import TrainerRequest, WorkerTask
from apportion.verl.coordinator.service import Coordinator
from apportion.verl.coordinator.settings import VerlAllocation
from benchmarks.verl_load_answers import Answers


@dataclass(frozen=True)
class Load:
    """The cost of a request in processor seconds; ``pause_seconds`` are on the clock.

    - ``open_seconds``: the call that begins the request and orders the first rollouts.
    - ``report_seconds``: all calls with reports, unpickling included. One call in a hundred takes longer than
      ``slow_seconds``, and the longest takes ``longest_seconds``.
    - ``metrics_seconds``: the call that returns the metrics.
    - ``pause_seconds``: the longest time during which nothing else could run.
    - ``peak_bytes``: the growth of the process.
    """

    reports: int
    open_seconds: float
    report_seconds: float
    slow_seconds: float
    longest_seconds: float
    metrics_seconds: float
    pause_seconds: float
    peak_bytes: int

    @property
    def seconds(self) -> float:
        """The seconds of the call that begins the request and of all reports."""
        return self.open_seconds + self.report_seconds

    @property
    def each_seconds(self) -> float:
        """The seconds of one report, with its share of the call that begins the request."""
        return self.seconds / self.reports


@dataclass
class LoadPool:
    """Keeps the tasks that it is sent, oldest first."""

    sent: deque[WorkerTask] = field(default_factory=deque)

    def send(self, worker: str, task: WorkerTask) -> None:
        self.sent.append(task)

    def hand_over(self, worker: str, request: TrainerRequest, uids: Sequence[str]) -> None:
        pass

    def forget_rows(self, request: TrainerRequest) -> None:
        pass


@dataclass
class Pauses:
    """The longest time that an always ready task had to wait."""

    longest: float = 0.0

    async def tick(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            self.longest, last = max(self.longest, now - last), now


def load_apart(name: str, prompts: int, workers: int, seed: int) -> Load:
    """Run ``load`` in a process of its own, because memory left by earlier runs costs time."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(load, (name, prompts, workers, seed))


def load(name: str, prompts: int, workers: int, seed: int) -> Load:
    """Return the cost of one request under the allocator ``name``, with one report a call."""
    answers = Answers(prompts, workers, seed)
    allocator, request = answers.learnt(name), answers.request()
    gc.collect()
    before = _peak_bytes()
    coordinator = Coordinator(VerlAllocation(allocator=allocator))
    coordinator.pool = LoadPool()
    found = asyncio.run(_carried_out(coordinator, answers, request))
    return Load(**found, peak_bytes=_peak_bytes() - before)


async def _carried_out(coordinator: Coordinator, answers: Answers, request: TrainerRequest) -> dict[str, Any]:
    """Return the fields of ``Load`` without the memory. The event loop runs between two calls.

    Garbage collection is off while tasks are answered, so that its time counts for the coordinator only.
    """
    pool: LoadPool = coordinator.pool  # type: ignore[assignment]
    pauses, calls = Pauses(), []
    open_seconds = seconds_of(lambda: coordinator.open(request))
    ticking = asyncio.create_task(pauses.tick())
    while pool.sent:
        collects = gc.isenabled()
        gc.disable()
        sent = pickle.dumps((answers.report(pool.sent.popleft()),), pickle.HIGHEST_PROTOCOL)
        if collects:
            gc.enable()
        await asyncio.sleep(0)
        calls.append(seconds_of(lambda sent=sent: coordinator.receive(pickle.loads(sent))))
        await asyncio.sleep(0)
    ticking.cancel()
    found = {
        "reports": len(calls),
        "open_seconds": open_seconds,
        "report_seconds": sum(calls),
        "slow_seconds": float(np.quantile(calls, 0.99)),
        "longest_seconds": max(calls),
        "pause_seconds": pauses.longest,
    }
    return found | {"metrics_seconds": seconds_of(coordinator.metrics)}  # raises if the request ended in an error


def seconds_of(call: Callable[[], object]) -> float:
    """Return the processor time of ``call``."""
    started = time.process_time()
    call()
    return time.process_time() - started


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
