"""An agent-loop worker without verl: it reports through real calls of Ray, and makes its rollouts up."""

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

import ray

from apportion import Rollout
from apportion.verl.coordinator.messages import CommitTask, TaskResult, WrittenRollout
from apportion.verl.reports import GROUP, Outbox


class LightWorker:
    """Does each task after ``seconds``, and writes down what it does in the file ``folder/log``.

    With ``folder/slow`` it takes three seconds to start. The first that finds ``folder/ignores`` never starts.
    """

    def __init__(self, folder, seconds=0.0):
        self.folder, self.seconds, self.held = Path(folder), seconds, {}
        self.outbox, self.losing = Outbox(), False
        if (self.folder / "slow").exists():
            time.sleep(3)
        with contextlib.suppress(FileNotFoundError):
            (self.folder / "ignores").unlink()
            time.sleep(1000)
        self._log("joined", os.getpid())

    def name(self):
        return str(ray.get_runtime_context().get_actor_name())

    @ray.method(concurrency_group=GROUP)
    def reports(self):
        values = self.outbox.take()
        return [] if self.losing else values

    async def generate_sequences(self, chunk):
        for uid in chunk["uid"]:
            if chunk["validate"]:
                asyncio.get_running_loop().call_later(self.seconds, self._validated, uid)
            else:
                self._row(uid).set_result(uid)

    async def take_over(self, chunks, uids):
        for chunk in chunks:
            found = await chunk
            await self.generate_sequences({**found, "uid": [uid for uid in found["uid"] if uid in uids]})

    async def loses(self):
        """Report nothing any more, but live."""
        self.losing = True

    async def carry_out(self, tasks):
        for task in tasks:
            asyncio.get_running_loop().create_task(self._carry_out(task))

    async def _carry_out(self, task):
        await self._row(task.uid)
        self._log("began", task.id)
        await asyncio.sleep(self.seconds)
        if isinstance(task, CommitTask):
            self._log("committed", task.uid)
            self.outbox.put(TaskResult(task.id))
            return
        rollouts = [
            Rollout(bool(i % 2), None, float(i % 2), WrittenRollout(os.urandom(8), task.uid, i, (3,)), 3)
            for i in task.sessions
        ]
        self.outbox.put(TaskResult(task.id, tuple(rollouts)))

    def _validated(self, uid):
        self._log("validated", uid)
        self.outbox.put(TaskResult(uid))

    def _row(self, uid):
        if uid not in self.held:
            self.held[uid] = asyncio.get_running_loop().create_future()
        return self.held[uid]

    def _log(self, event, what):
        with (self.folder / "log").open("a", encoding="utf-8") as log:
            log.write(f"{event} {self.name()} {what}\n")


def send_signal(pid, number=signal.SIGKILL):
    """Send a signal to a worker's process."""
    os.kill(pid, number)
