"""The group of workers on a real Ray, with workers that do no work: stops, kills, restarts, losses, and its log."""

import asyncio
import importlib
import itertools
import logging
import os
import re
import signal
import time
from unittest import mock

import pytest

from apportion import Uniform
from apportion.verl import VerlAllocation
from apportion.verl.coordinator import settings
from apportion.verl.coordinator.service import Coordinator
from apportion.verl.reports import GROUP
from tests.verl.coordinator.worker_pool import request_of, texts
from tests.verl.light_worker import LightWorker, send_signal

SECONDS = 60.0
"""How long a test waits for anything."""

SILENT = 3.0
"""How long a worker may say nothing."""

pytestmark = pytest.mark.slow  # most of it is waiting for silence, and for Ray

numbers = itertools.count()


@pytest.fixture
def workers(ray, monkeypatch):
    """Return the module of the group, with short pauses."""
    module = importlib.import_module("apportion.verl.workers")
    monkeypatch.setattr(module, "REPORT_SECONDS", 1.0)
    return module


class Scene:
    """A group of light workers, its coordinator, and what the workers wrote down."""

    limits = settings.TimeLimits(3600.0)

    def __init__(self, ray, module, folder, count, restarts, seconds):
        self.ray, self.folder, self.coordinator = ray, folder, Coordinator(VerlAllocation(allocator=Uniform(4)))
        number, actor = (
            next(numbers),
            ray.remote(num_cpus=0.1, max_restarts=restarts, concurrency_groups={GROUP: 1})(LightWorker),
        )
        self.names = [f"light{number}_{i}" for i in range(count)]
        self.handles = {name: actor.options(name=name).remote(str(folder), seconds) for name in self.names}
        self.group = module.WorkerGroup(self.coordinator, self.handles)
        self.group._silent_seconds, self.group._limits = SILENT, self.limits

    def log(self, event):
        """Return the lines of one kind, each as the name of the worker and what it did it with."""
        path = self.folder / "log"
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        return [tuple(line.split()[1:]) for line in lines if line.split()[0] == event]

    def pid(self, name):
        return [int(pid) for other, pid in self.log("joined") if other == name][-1]

    def open(self, step=1, prompts=6, validate=False):
        """Begin a round or a validation, and return the uids of its prompts."""
        owners = [self.names[i * len(self.names) // prompts] for i in range(prompts)]
        request = request_of(texts(*range(prompts)), step, owners)
        uids = [prompt.data.uid for prompt in request.prompts]
        chunks = [[uid for uid, owner in zip(uids, owners, strict=True) if owner == name] for name in self.names]
        begin = self.coordinator.validate if validate else self.coordinator.open
        rows = [self.ray.put({"uid": chunk, "validate": validate}) for chunk in chunks if chunk]
        self.group.hand_out(request, rows, begin)
        return uids

    async def ended(self, seconds=SECONDS):
        """Wait until no round is unfinished, and return what it took in seconds. Raise the coordinator's error."""
        began = time.monotonic()
        await self.until(lambda: self.coordinator.check() or not self.coordinator._rounds, seconds)
        return time.monotonic() - began

    async def until(self, true, seconds=SECONDS):
        async with asyncio.timeout(seconds):
            while not true():
                await asyncio.sleep(0.05)


def scenario(ray, module, folder, act, count=2, restarts=0, seconds=0.5, start=True):
    """Run ``act`` with a group."""

    async def run():
        scene = Scene(ray, module, folder, count, restarts, seconds)
        try:
            if start:
                await asyncio.wait_for(scene.group.start(), SECONDS)
            await act(scene)
        finally:
            scene.group.close()
            for handle in scene.handles.values():
                ray.kill(handle)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("number", "during"), [(signal.SIGKILL, True), (signal.SIGSTOP, False)], ids=["killed", "stopped"]
)
def test_others_take_over_from_a_worker_that_is_killed_or_stopped(ray, workers, tmp_path, number, during):
    """A stopped one is killed too, so that it does nothing any more when it could go on."""

    async def act(scene):
        one, other = scene.names
        pid = scene.pid(one)
        if not during:
            send_signal(pid, number)
        uids = scene.open()
        if during:
            await scene.until(lambda: any(name == one for name, _ in scene.log("began")))
            send_signal(pid, number)
        assert await scene.ended() < 20
        assert not os.path.exists(f"/proc/{pid}")
        assert {uid for _, uid in scene.log("committed")} == set(uids)
        assert {uid for name, uid in scene.log("committed") if name == other} >= set(uids[:3])
        metrics = scene.coordinator.metrics()
        assert metrics["reassigned"] == 3 and metrics["rollouts"] == 24 and metrics["failed"] == 0
        scene.open(step=2)
        assert await scene.ended() < 10

    scenario(ray, workers, tmp_path, act)


def test_a_worker_that_goes_on_in_time_and_those_of_a_stopped_trainer_keep_their_prompts(ray, workers, tmp_path):
    """The reports of the latter wait to be read when the trainer goes on."""

    async def act(scene):
        scene.open()
        send_signal(scene.pid(scene.names[0]), signal.SIGSTOP)
        await asyncio.sleep(SILENT / 2)
        send_signal(scene.pid(scene.names[0]), signal.SIGCONT)
        await scene.ended()
        scene.open(step=2)
        for _ in range(3):
            time.sleep(SILENT * 0.8)  # with what came before, longer than ``silent_seconds``
            await asyncio.sleep(0.05)
        await scene.ended()
        await asyncio.sleep(1)
        assert all(os.path.exists(f"/proc/{scene.pid(name)}") for name in scene.names)
        assert scene.coordinator.metrics()["reassigned"] == 0

    scenario(ray, workers, tmp_path, act)


def test_workers_that_are_all_dead_are_waited_for(ray, workers, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(workers, "REPORT_SECONDS", 0.1)

    async def act(scene):
        scene.open()
        await scene.until(lambda: scene.log("began"))
        (tmp_path / "slow").touch()  # so that all are dead at the same time
        for name in scene.names:
            send_signal(scene.pid(name))
        await scene.until(lambda: not scene.group.living)
        scene.open(step=2)
        await scene.ended()
        assert len(scene.log("joined")) >= 3 and scene.coordinator.metrics()["failed"] == 0

    with caplog.at_level(logging.WARNING):
        scenario(ray, workers, tmp_path, act, restarts=1)
    assert "until Ray restarts it" in caplog.text  # the watchdog's line


def test_workers_that_are_all_gone_for_good_end_the_run(ray, workers, tmp_path):
    async def act(scene):
        scene.open(validate=True)
        for name in scene.names:
            send_signal(scene.pid(name))
        await scene.until(lambda: scene.coordinator.error, 20)
        with pytest.raises(RuntimeError, match="workers must live, got none of 2"):
            scene.open(step=2)

    scenario(ray, workers, tmp_path, act)


def test_others_finish_a_validation(ray, workers, tmp_path):
    async def act(scene):
        uids = scene.open(validate=True)
        send_signal(scene.pid(scene.names[0]), signal.SIGSTOP)
        await scene.until(lambda: {uid for _, uid in scene.log("validated")} == set(uids), 20)
        await scene.until(lambda: not scene.coordinator._rounds)

    scenario(ray, workers, tmp_path, act, seconds=1.0)


def test_a_worker_that_never_starts_ends_the_run(ray, workers, tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "LEAST_START", 3.0)
    monkeypatch.setattr(Scene, "limits", settings.TimeLimits(18.0))
    (tmp_path / "ignores").touch()

    async def act(scene):
        with pytest.raises(RuntimeError, match="must start within 3 seconds, got no answer"):
            await asyncio.wait_for(scene.group.start(), SECONDS)

    scenario(ray, workers, tmp_path, act, start=False)


def test_a_worker_that_is_not_restarted_in_time_counts_as_gone(ray, workers, tmp_path, monkeypatch, caplog):
    async def act(scene):
        monkeypatch.setattr(settings, "LEAST_START", 3.0)
        scene.group._limits = settings.TimeLimits(18.0)
        (tmp_path / "ignores").touch()
        send_signal(scene.pid(scene.names[0]))
        await scene.until(lambda: "counts as gone" in caplog.text)
        scene.open()
        assert await scene.ended() < 10

    scenario(ray, workers, tmp_path, act, restarts=1)


def test_a_trainer_that_stays_at_one_line_ends_and_the_log_says_where(ray, workers, tmp_path, monkeypatch, caplog):
    told, waited = [], iter(range(0, 100, 12))
    monkeypatch.setattr(workers, "end_trainer", lambda message, waits: asyncio.sleep(0, told.append(message)))
    monkeypatch.setattr(Scene, "limits", settings.TimeLimits(60.0))

    async def act(scene):
        scene.group._phase = mock.Mock(look=lambda passed: ("on_step_end: update()", next(waited)))
        scene.group._others_watch.silent["a server"] = 50.0
        await scene.until(lambda: told)
        assert "The trainer has been at on_step_end: update() for 48 s; silent: a server" in caplog.text
        with pytest.raises(
            RuntimeError, match=r"must leave on_step_end: update\(\) within 60 seconds, got 60 s, silent: a"
        ):
            scene.coordinator.check()

    with caplog.at_level(logging.WARNING):
        scenario(ray, workers, tmp_path, act)


def test_a_wait_is_reported_with_hosts_workers_and_seconds(ray, workers, tmp_path, caplog):
    async def act(scene):
        scene.open()
        await scene.ended()
        await asyncio.sleep(3)  # nothing is waited for
        assert "No result" not in caplog.text
        await scene.handles[scene.names[1]].loses.remote()
        scene.open(step=2)
        await scene.until(lambda: "No result for 2 s" in caplog.text)
        assert re.search(rf"3 tasks of {scene.names[1]} on \S+, heard of [0-3] s ago", caplog.text)

    with caplog.at_level(logging.WARNING):
        scenario(ray, workers, tmp_path, act, seconds=0.05)


def test_a_process_with_the_number_of_an_ended_one_is_not_killed(ray):
    processes = importlib.import_module("apportion.verl.worker_processes")
    with mock.patch.object(processes.os, "kill") as kill:
        processes.end_process(os.getpid(), time.time() - 10**6)
        assert not kill.called
    processes.end_process(2**22 + 1, time.time())  # there is none
