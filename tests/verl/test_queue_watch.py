"""The death of an actor that a run needs is told, once; one that is busy is only mentioned."""

import asyncio
import importlib
import logging
import os
import signal
import time


class Storage:
    def pid(self):
        return os.getpid()

    def works(self, seconds):
        time.sleep(seconds)


def test_a_process_that_is_stopped_is_told_after_its_bound(ray, monkeypatch):
    watch = importlib.import_module("apportion.verl.queue_watch")
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(watch, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(watch, "STOPPED_SECONDS", 2.0)
    told, storage = [], ray.remote(num_cpus=0.1)(Storage).remote()
    pid = ray.get(storage.pid.remote())

    async def scenario():
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        await asyncio.wait_for(watch.watch_actor("the storage", storage, told.append), 30)
        return time.monotonic() - began

    try:
        assert asyncio.run(scenario()) >= 2
        assert len(told) == 1 and "the storage must answer" in told[0]
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_death_is_told_and_work_is_not(ray, monkeypatch, caplog):
    watch = importlib.import_module("apportion.verl.queue_watch")
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(watch, "ANSWER_SECONDS", 0.5)
    name, told = f"{watch.STORAGE}77", []
    storage = ray.remote(num_cpus=0.1)(Storage).options(name=name).remote()
    pid = ray.get(storage.pid.remote())
    assert name in watch.queue_actors()

    async def scenario():
        watching = asyncio.create_task(watch.watch_actor(name, watch.queue_actors()[name], told.append))
        storage.works.remote(2)
        await asyncio.sleep(3)
        assert not told and f"{name} has not answered for" in caplog.text
        os.kill(pid, signal.SIGKILL)
        await asyncio.wait_for(watching, 30)

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert len(told) == 1 and f"{name} must live" in told[0]
