"""An agent-loop worker without verl: it speaks the real protocol through a real channel, and makes its rollouts up."""

import asyncio
import os
import signal
import socket
import time
from pathlib import Path

import psutil
import ray

from apportion import Rollout
from apportion.verl.channel import WorkerChannel
from apportion.verl.coordinator.messages import CommitTask, TaskResult, Validated, WorkerPlace, WrittenRollout


class LightWorker:
    """Does each task after ``seconds``, and writes down what it does in the file ``folder/log``.

    A file ``folder/{fault}`` asks the first worker that comes by for a fault: ``ignores`` has it never connect.
    With ``folder/slow`` it takes three seconds to start.
    """

    def __init__(self, folder, seconds=0.0):
        self.folder, self.seconds, self.held = Path(folder), seconds, {}
        if (self.folder / "slow").exists():
            time.sleep(3)

    def name(self):
        return str(ray.get_runtime_context().get_actor_name())

    async def attach(self, address, channel):
        if self._asked("ignores"):
            await asyncio.Event().wait()
        self.channel = WorkerChannel(address, channel, self.carry_out)
        started = psutil.Process().create_time()
        place = WorkerPlace(ray.get_runtime_context().get_node_id(), socket.gethostname(), os.getpid(), started)
        self.channel.put(place)
        self._log("joined", os.getpid())
        await asyncio.Event().wait()

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

    async def loses(self, count):
        """Lose the next ``count`` messages to the coordinator."""
        send, left = self.channel._link.send, iter(range(count))

        def lossy(frames):
            if next(left, None) is None:
                send(frames)

        self.channel._link.send = lossy

    def carry_out(self, tasks):
        for task in tasks:
            asyncio.get_running_loop().create_task(self._carry_out(task))

    async def _carry_out(self, task):
        await self._row(task.uid)
        self._log("began", task.id)
        await asyncio.sleep(self.seconds)
        if isinstance(task, CommitTask):
            self._log("committed", task.uid)
            self.channel.put(TaskResult(task.id))
            return
        rollouts = [
            Rollout(bool(i % 2), None, float(i % 2), WrittenRollout(os.urandom(8), task.uid, i, (3,)), 3)
            for i in task.sessions
        ]
        self.channel.put(TaskResult(task.id, tuple(rollouts)))

    def _validated(self, uid):
        self._log("validated", uid)
        self.channel.put(Validated(uid))

    def _row(self, uid):
        if uid not in self.held:
            self.held[uid] = asyncio.get_running_loop().create_future()
        return self.held[uid]

    def _log(self, event, what):
        with (self.folder / "log").open("a", encoding="utf-8") as log:
            log.write(f"{event} {self.name()} {what}\n")

    def _asked(self, fault):
        try:
            (self.folder / fault).unlink()
        except FileNotFoundError:
            return False
        return True


def send_signal(pid, number=signal.SIGKILL):
    """Send a signal to a worker's process."""
    os.kill(pid, number)
