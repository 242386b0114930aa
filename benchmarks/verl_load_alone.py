"""Measure a coordinator alone in a process. Every task is answered at once, and the answers are not counted."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import pickle
import resource
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from apportion.verl.coordinator.journal import Event, EventJournal

from apportion.verl.coordinator.messages import TrainerRequest, WorkerTask
from apportion.verl.coordinator.service import Coordinator, collect_rarely
from apportion.verl.coordinator.settings import VerlAllocation
from benchmarks.verl_load_answers import Answers


@dataclass(frozen=True)
class Load:
    """The cost of a request in processor seconds; ``pause_seconds`` are on the clock.

    - ``open_seconds``: the call that begins the request and orders the first rollouts.
    - ``report_seconds``: all calls with reports, unpickling included. One call in a hundred takes longer than
      ``slow_seconds``, and the longest takes ``longest_seconds``.
    - ``metrics_seconds``: the call that returns the metrics.
    - ``journal_seconds``: the part of these spent on the journal; ``anew_seconds`` of it to rewrite it ``anew`` times.
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
    journal_seconds: float
    journal_bytes: int
    anew: int
    anew_seconds: float
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

    def hand_over(self, worker: str, request: TrainerRequest, uids: Sequence[str]) -> bool:
        return False

    def forget_rows(self, request: TrainerRequest) -> None:
        pass


class TimedJournal(EventJournal):
    """A journal that counts its ``seconds``, and ``anew_seconds`` of them for rewriting itself."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.restart(None)
        self.anew, self.written, self.seconds, self.anew_seconds = 0, 0, 0.0, 0.0

    def write(self, event: Event) -> None:
        assert self._file is not None
        before = self._file.tell()
        self.seconds += seconds_of(lambda: super(TimedJournal, self).write(event))
        self.written += self._file.tell() - before

    def restart(self, state: Mapping[str, Any] | None) -> None:
        took = seconds_of(lambda: super(TimedJournal, self).restart(state))
        if state is not None:
            self.anew, self.written = self.anew + 1, self.written + self.path.stat().st_size
            self.seconds, self.anew_seconds = self.seconds + took, self.anew_seconds + took


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
    with multiprocessing.get_context("fork").Pool(1, initializer=collect_rarely) as pool:
        return pool.apply(load, (name, prompts, workers, seed))


def load(name: str, prompts: int, workers: int, seed: int) -> Load:
    """Return the cost of one request under the allocator ``name``, with one report a call."""
    answers = Answers(prompts, workers, seed)
    allocator, request = answers.learnt(name), answers.request()
    gc.collect()
    before = _peak_bytes()
    with tempfile.TemporaryDirectory() as folder:
        journal = TimedJournal(Path(folder) / "journal")
        coordinator = Coordinator(VerlAllocation(allocator=allocator), LoadPool(), journal)
        found = asyncio.run(_carried_out(coordinator, journal, answers, request))
        journal.close()
    return Load(**found, peak_bytes=_peak_bytes() - before)


async def _carried_out(
    coordinator: Coordinator, journal: TimedJournal, answers: Answers, request: TrainerRequest
) -> dict[str, Any]:
    """Return the fields of ``Load`` without the memory. The event loop runs between two calls, as in an actor.

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
        "journal_seconds": journal.seconds,
        "journal_bytes": journal.written,
        "anew": journal.anew,
        "anew_seconds": journal.anew_seconds,
    }
    return found | {"metrics_seconds": seconds_of(coordinator.metrics)}  # raises if the request ended in an error


def seconds_of(call: Callable[[], object]) -> float:
    """Return the processor time of ``call``."""
    started = time.process_time()
    call()
    return time.process_time() - started


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
