"""Measure what the results of many rollouts cost the coordinator of the verl integration, behind calls of Ray.

    python -m benchmarks.verl_load

Actors of Ray stand for the workers, and answer each task at once. The coordinator, its group of workers and the outbox
of each worker are the real ones. verl's trainer, the TransferQueue and generation are left out.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import asyncio
import tempfile
import time
from importlib.metadata import version
from uuid import UUID
from zlib import crc32

import numpy as np
import ray

from apportion import Prompt, Rollout, Uniform, Voting
from apportion.verl.coordinator.messages import RolloutTask, RowAddress, TaskResult, TrainerRequest, WrittenRollout
from apportion.verl.coordinator.service import Coordinator
from apportion.verl.coordinator.settings import VerlAllocation
from apportion.verl.reports import GROUP, Outbox
from apportion.verl.workers import WorkerGroup
from benchmarks.common import RESULTS, spread, write

PROMPTS, ROLLOUTS, RUNS, RUN_SECONDS = 5_000, 8, 3, 300.0
WORKERS = [f"agent_loop_worker_{worker}_{worker:08x}" for worker in range(4)]
"""Names as long as verl's."""
RULES = {
    "uniform": lambda: Uniform(ROLLOUTS),
    "voting": lambda: Voting(max_samples=ROLLOUTS, wave=ROLLOUTS // 2),
}
COLUMNS = {"taken a second": ",.0f", "µs of the thread": ".0f", "p99 ms": ",.1f"}
"""What is shown of a run, and its form."""


def requested(prompts):
    """Return a request of so many prompts, 300 letters each, dealt to the workers as verl does, with uids like its."""
    made, owners = [], []
    for q in range(prompts):
        uid = str(UUID(int=q + 1))
        made.append(
            Prompt(f"{q} trains leave the station at noon; how far do they get? " * 5, data=RowAddress(uid, uid))
        )
        owners.append(WORKERS[q * len(WORKERS) // prompts])
    return TrainerRequest(1, tuple(made), tuple(owners), (None,) * len(WORKERS))


def reported(task):
    """Return the result of a worker that has carried out ``task``. Two rollouts of five are right."""
    if not isinstance(task, RolloutTask):
        return TaskResult(task.id)
    return TaskResult(task.id, tuple(_rollout(task.uid, session) for session in task.sessions))


def _rollout(uid, session):
    drawn = crc32(f"{uid} {session}".encode())
    right, tokens = drawn % 5 < 2, 100 + drawn % 1000
    written = WrittenRollout(drawn.to_bytes(16, "big"), uid, session, (tokens,))
    return Rollout(right, "42" if right else str(drawn % 3), float(right), written, tokens)


class AnsweringWorker:
    """Answers each task at once, with the time of the answer."""

    def __init__(self):
        self._outbox = Outbox()

    @ray.method(concurrency_group=GROUP)
    def reports(self):
        """Return what was answered since the last call."""
        return self._outbox.take()

    async def generate_sequences(self, chunk):
        """Take rows, which are not looked at."""

    async def carry_out(self, tasks):
        """Answer ``tasks``."""
        for task in tasks:
            self._outbox.put((reported(task), time.monotonic()))


async def served(rule, prompts):
    """Return the results a second, the µs of the coordinator's thread for each, and the p99 of their delays in ms."""
    coordinator, request = Coordinator(VerlAllocation(allocator=RULES[rule]())), requested(prompts)
    actor = ray.remote(num_cpus=0, concurrency_groups={GROUP: 1})(AnsweringWorker)
    handles = {worker: actor.options(name=worker).remote() for worker in WORKERS}
    delays, over, receive = [], asyncio.Event(), coordinator.receive

    def received(found):
        delays.extend(time.monotonic() - made for _, made in found)
        receive([result for result, _ in found])
        if coordinator.error is not None or not coordinator.waits:
            over.set()

    coordinator.receive = received
    group = WorkerGroup(coordinator, handles)
    await group.start()
    began, own = time.perf_counter(), time.thread_time()
    group.hand_out(request, coordinator.open)
    await asyncio.wait_for(over.wait(), RUN_SECONDS)
    seconds, own = time.perf_counter() - began, time.thread_time() - own
    coordinator.check()
    group.close()
    return len(delays) / seconds, 1e6 * own / len(delays), 1e3 * float(np.quantile(delays, 0.99))


def study(results=RESULTS, prompts=PROMPTS, runs=RUNS):
    """Measure the coordinator behind Ray's calls and write the table ``verl_load_reports``."""
    found = {rule: [] for rule in RULES}
    for _ in range(runs):  # in turns, so that a busy moment of the machine does not hit one rule alone
        for rule, own in found.items():
            with tempfile.TemporaryDirectory(
                prefix="r", dir="/tmp"
            ) as folder:  # for sockets, whose paths must be short
                ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100_000_000, _temp_dir=folder)
                own.append(asyncio.run(served(rule, prompts)))
                ray.shutdown()
            print(rule, own[-1], flush=True)
    write(
        "verl_load_reports",
        "The load of the verl integration's coordinator behind Ray's calls",
        ["allocator", "prompts", *COLUMNS],
        [[rule, f"{prompts:,}", *map(spread, zip(*own, strict=True), COLUMNS.values())] for rule, own in found.items()],
        [
            f"The coordinator in one process, and {len(WORKERS)} actors of Ray {version('ray')} on the same cores that "
            f"answer its tasks as soon as they come, with verl {version('verl')}. `µs of the thread` is processor time "
            "a report, of the coordinator's thread; `p99 ms` is from a report to when the coordinator has it. Mean and "
            "95% interval (Student's t) over runs."
        ],
        seeds=range(runs),
        cells={"served": found},
        results=results,
    )


if __name__ == "__main__":
    study()
