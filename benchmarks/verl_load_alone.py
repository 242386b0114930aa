"""A coordinator alone in a process, with a crew that has every answer at once: what is counted is the coordinator's."""

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

from apportion.integrations.verl.coordinator import Coordinator
from apportion.integrations.verl.journal import Journal, Record
from apportion.integrations.verl.messages import Dispatch, Task
from apportion.integrations.verl.settings import Allocation
from benchmarks.verl_load_answers import ALLOCATORS, Answers

SLICE_SECONDS = 0.1
"""How often the ticking task looks whether all is over."""


@dataclass(frozen=True)
class Load:
    """What a dispatch cost: processor seconds, but for ``pause_seconds``, the longest time that nothing else could run.

    ``open_seconds`` is the call that begins it, which orders the first rollouts; ``report_seconds`` all calls with
    reports, unpickled there, and ``slow_seconds`` that of one in a hundred; ``metrics_seconds`` what is logged of it.
    ``journal_seconds`` is part of these, ``begun_anew`` how often the journal was. ``peak_bytes`` is what the process
    grew by.
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
    begun_anew: int
    peak_bytes: int

    @property
    def each_seconds(self) -> float:
        """Of a report, the call that opens the dispatch shared among all."""
        return (self.open_seconds + self.report_seconds) / self.reports


@dataclass
class Crew:
    """Keeps what it is sent, oldest first."""

    sent: deque[Task] = field(default_factory=deque)

    def send(self, worker: str, task: Task) -> None:
        self.sent.append(task)

    def move(self, worker: str, dispatch: Dispatch, hosts: Sequence[str]) -> bool:
        return False

    def forget(self, dispatch: Dispatch) -> None:
        pass


class TimedJournal(Journal):
    """A journal that knows what it cost so far: ``seconds``, and ``written`` bytes."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.seconds, self.written, self.begun = 0.0, 0, 0

    def write(self, record: Record) -> None:
        started = time.process_time()
        before = self._file.tell()  # type: ignore[union-attr]
        super().write(record)
        self.written += self._file.tell() - before  # type: ignore[union-attr]
        self.seconds += time.process_time() - started

    def restart(self, state: Mapping[str, Any] | None) -> None:
        started = time.process_time()
        super().restart(state)
        self.seconds += time.process_time() - started
        self.written += self.path.stat().st_size
        self.begun += 1


def loads(name: str, prompts: int, workers: int, seed: int, together: int = 1) -> Load:
    """The load of one dispatch, in a process of its own: what earlier ones left in memory costs time."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(load, (name, prompts, workers, seed, together))


def load(name: str, prompts: int, workers: int, seed: int, together: int) -> Load:
    """That of one dispatch under the allocator ``name``, with ``together`` reports a call."""
    answers, allocator = Answers(prompts, workers, seed), ALLOCATORS[name]()
    answers.learnt(allocator)
    dispatch = answers.dispatch()
    gc.collect()
    before = _peak_bytes()
    with tempfile.TemporaryDirectory() as folder:
        journal = TimedJournal(Path(folder) / "journal")
        journal.restart(None)
        coordinator = Coordinator(Allocation(allocator=allocator), Crew(), journal)
        found = asyncio.run(_carried_out(coordinator, journal, answers, dispatch, together))
        journal.close()
    return Load(**found, peak_bytes=_peak_bytes() - before)


async def _carried_out(
    coordinator: Coordinator, journal: TimedJournal, answers: Answers, dispatch: Dispatch, together: int
) -> dict[str, Any]:
    """``Load`` but for the memory. Between any two calls the loop goes round, as it does in an actor."""
    crew: Crew = coordinator.crew  # type: ignore[assignment]
    pauses = Pauses()
    open_seconds = _seconds(lambda: coordinator.open(dispatch))
    ticking = asyncio.create_task(pauses.tick())
    reports, calls = 0, []
    while crew.sent:
        await asyncio.sleep(0)
        gc.disable()
        tasks = [crew.sent.popleft() for _ in range(min(together, len(crew.sent)))]
        sent = pickle.dumps([answers.report(task) for task in tasks], pickle.HIGHEST_PROTOCOL)
        gc.enable()
        await asyncio.sleep(0)
        calls.append(_seconds(lambda sent=sent: coordinator.report(pickle.loads(sent))))
        reports += len(tasks)
    ticking.cancel()
    journal_seconds, journal_bytes = journal.seconds, journal.written
    metrics_seconds = _seconds(coordinator.metrics)
    if coordinator.error is not None:
        raise RuntimeError(coordinator.error)
    return {
        "reports": reports,
        "open_seconds": open_seconds,
        "report_seconds": sum(calls),
        "slow_seconds": float(np.quantile(calls, 0.99)),
        "longest_seconds": max(calls),
        "metrics_seconds": metrics_seconds,
        "pause_seconds": pauses.longest,
        "journal_seconds": journal_seconds,
        "journal_bytes": journal_bytes,
        "begun_anew": journal.begun - 1,
    }


@dataclass
class Pauses:
    """The longest time that a task which is always ready had to wait."""

    longest: float = 0.0

    async def tick(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            self.longest, last = max(self.longest, now - last), now


def _seconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
