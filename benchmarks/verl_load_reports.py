"""Measure the coordinator behind Ray's calls, with real actors that stand for workers and answer at once.

The coordinator, its group of workers and the outbox of each worker are the real ones. Generation is left out.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
from dataclasses import dataclass

import numpy as np
import ray

from apportion.verl.coordinator.service import Coordinator
from apportion.verl.coordinator.settings import VerlAllocation
from apportion.verl.reports import GROUP, Outbox
from apportion.verl.workers import WorkerGroup
from benchmarks.verl_load_answers import Answers, worker_name

RUN_SECONDS = 300.0
"""How long a request may take."""


@dataclass(frozen=True)
class Served:
    """The cost of a request: ``seconds`` from its begin to its end, for ``reports`` in so many ``calls``.

    ``loop_seconds`` is processor time of the coordinator's thread. ``delays`` are the seconds from a report to when the
    coordinator has it.
    """

    reports: int
    calls: int
    seconds: float
    loop_seconds: float
    delays: tuple[float, ...]

    @property
    def rate(self):
        """The number of reports a second."""
        return self.reports / self.seconds

    def delay(self, share):
        """Return the delay that ``share`` of the reports do not exceed, in seconds."""
        return float(np.quantile(self.delays, share))


class AnsweringWorker:
    """Answers each task at once, or at ``rate`` a second. A report's failure is when it was made."""

    def __init__(self, answers, rate):
        self._answers, self._rate, self._outbox = answers, rate, Outbox()
        self._due = 0.0

    @ray.method(concurrency_group=GROUP)
    def reports(self):
        """Return what was answered since the last call."""
        return self._outbox.take()

    async def generate_sequences(self, chunk):
        """Take rows, which are not looked at."""

    async def carry_out(self, tasks):
        """Answer ``tasks``."""
        for task in tasks:
            if self._rate is not None:
                now = time.monotonic()
                self._due = max(self._due + 1 / self._rate, now)
                await asyncio.sleep(self._due - now)
            self._outbox.put((self._answers.report(task), time.monotonic()))


def served_apart(name, prompts, workers, seed, rate=None):
    """Return the cost of one request under the allocator ``name``, with the coordinator in a process of its own.

    The workers answer ``rate`` tasks a second together, or as many as they can if it is None.
    """
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_serve, args=(there, name, Answers(prompts, workers, seed), rate))
    process.start()
    there.close()
    try:
        found: Served = here.recv()
    except EOFError as error:
        raise RuntimeError(f"the coordinator of {name} must return its cost, got an error; see above") from error
    finally:
        process.join()
    return found


def _serve(pipe, name, answers, rate):
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:  # for sockets, whose paths must be short
        ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100_000_000, _temp_dir=folder)
        try:
            pipe.send(asyncio.run(_served(name, answers, rate)))
        finally:
            ray.shutdown()


async def _served(name, answers, rate):
    coordinator, request = Coordinator(VerlAllocation(allocator=answers.learnt(name))), answers.request()
    actor = ray.remote(num_cpus=0, concurrency_groups={GROUP: 1})(AnsweringWorker)
    names, each = [worker_name(i) for i in range(answers.workers)], None if rate is None else rate / answers.workers
    handles = {worker: actor.options(name=worker).remote(answers, each) for worker in names}
    delays, calls, over, receive = list[float](), list[int](), asyncio.Event(), coordinator.receive

    def received(found):
        now = time.monotonic()
        delays.extend(now - made for _, made in found)
        calls.append(len(found))
        receive([result for result, _ in found])
        if coordinator.error is not None or not coordinator.waits:
            over.set()

    coordinator.receive = received
    group = WorkerGroup(coordinator, handles)
    await group.start()
    began, loop_seconds = time.perf_counter(), time.thread_time()
    group.hand_out(request, [ray.put(None) for _ in names], coordinator.open)
    await asyncio.wait_for(over.wait(), RUN_SECONDS)
    seconds, loop_seconds = time.perf_counter() - began, time.thread_time() - loop_seconds
    coordinator.check()
    group.close()
    return Served(sum(calls), len(calls), seconds, loop_seconds, tuple(delays))
