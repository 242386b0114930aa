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

from apportion.integrations.verl.coordinator import Coordinator, collect_rarely
from apportion.integrations.verl.journal import Journal, Record
from apportion.integrations.verl.messages import Dispatch, Task
from apportion.integrations.verl.settings import Allocation
from benchmarks.verl_load_answers import Answers


@dataclass(frozen=True)
class Load:
    """What a dispatch cost: processor seconds, but for ``pause_seconds``, the longest time that nothing else could run.

    ``open_seconds`` is the call that begins it, which orders the first rollouts; ``report_seconds`` all calls with
    reports, which are unpickled there, ``slow_seconds`` what one in a hundred exceeds, ``longest_seconds`` the longest;
    ``metrics_seconds`` the call for what is logged. ``journal_seconds`` is part of these, and ``anew_seconds`` of that:
    what it took to begin the journal anew, ``anew`` times. ``peak_bytes`` is what the process grew by.
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
        """From the call that opens the dispatch to the last report."""
        return self.open_seconds + self.report_seconds

    @property
    def each_seconds(self) -> float:
        """Of a report, the call that opens the dispatch shared among all."""
        return self.seconds / self.reports


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
    """A journal that knows what it cost since it was made: ``anew_seconds`` of the ``seconds`` to begin anew."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.restart(None)
        self.anew, self.written, self.seconds, self.anew_seconds = 0, 0, 0.0, 0.0

    def write(self, record: Record) -> None:
        assert self._file is not None
        before = self._file.tell()
        self.seconds += seconds_of(lambda: super(TimedJournal, self).write(record))
        self.written += self._file.tell() - before

    def restart(self, state: Mapping[str, Any] | None) -> None:
        took = seconds_of(lambda: super(TimedJournal, self).restart(state))
        if state is not None:
            self.anew, self.written = self.anew + 1, self.written + self.path.stat().st_size
            self.seconds, self.anew_seconds = self.seconds + took, self.anew_seconds + took


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


def load_apart(name: str, prompts: int, workers: int, seed: int) -> Load:
    """``load`` in a process of its own: what earlier ones left in memory costs time."""
    with multiprocessing.get_context("fork").Pool(1, initializer=collect_rarely) as pool:
        return pool.apply(load, (name, prompts, workers, seed))


def load(name: str, prompts: int, workers: int, seed: int) -> Load:
    """That of one dispatch under the allocator ``name``, one report a call."""
    answers = Answers(prompts, workers, seed)
    allocator, dispatch = answers.learnt(name), answers.dispatch()
    gc.collect()
    before = _peak_bytes()
    with tempfile.TemporaryDirectory() as folder:
        journal = TimedJournal(Path(folder) / "journal")
        coordinator = Coordinator(Allocation(allocator=allocator), Crew(), journal)
        found = asyncio.run(_carried_out(coordinator, journal, answers, dispatch))
        journal.close()
    return Load(**found, peak_bytes=_peak_bytes() - before)


async def _carried_out(
    coordinator: Coordinator, journal: TimedJournal, answers: Answers, dispatch: Dispatch
) -> dict[str, Any]:
    """``Load`` but for the memory. Between two calls the loop goes round, as it does in an actor.

    Nothing is collected while the crew works, which keeps nothing: what is collected is the coordinator's.
    """
    crew: Crew = coordinator.crew  # type: ignore[assignment]
    pauses, calls = Pauses(), []
    open_seconds = seconds_of(lambda: coordinator.open(dispatch))
    ticking = asyncio.create_task(pauses.tick())
    while crew.sent:
        collects = gc.isenabled()
        gc.disable()
        sent = pickle.dumps((answers.report(crew.sent.popleft()),), pickle.HIGHEST_PROTOCOL)
        if collects:
            gc.enable()
        await asyncio.sleep(0)
        calls.append(seconds_of(lambda sent=sent: coordinator.report(pickle.loads(sent))))
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
    return found | {"metrics_seconds": seconds_of(coordinator.metrics)}  # raises where the dispatch ended in an error


def seconds_of(call: Callable[[], object]) -> float:
    """Processor time of ``call``."""
    started = time.process_time()
    call()
    return time.process_time() - started


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
