"""The death and the silence of an actor that a run needs are told once; one that is busy is only mentioned."""

import asyncio
import importlib
import logging
import os
import signal
import time
from types import SimpleNamespace

import pytest


class Part:
    def pid(self):
        return os.getpid()

    def works(self, seconds):
        time.sleep(seconds)


class AsyncPart:
    async def pid(self):
        return os.getpid()


@pytest.fixture
def watch(ray, monkeypatch):
    module = importlib.import_module("apportion.verl.actor_watch")
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.5)
    return module


def test_a_death_is_told_and_work_is_not(ray, watch, caplog):
    name, told = f"{watch.STORAGE}77", []
    storage = ray.remote(num_cpus=0.1)(Part).options(name=name).remote()
    pid = ray.get(storage.pid.remote())
    (actor,) = [each for each in watch.queue_actors() if each.name == name]

    async def scenario():
        watching = watch.ActorWatch(told.append, 60.0)
        task = asyncio.create_task(watching.watch(actor))
        storage.works.remote(2)
        await asyncio.sleep(3)
        assert not told and not watching.silent and f"{name} has not answered for" in caplog.text
        os.kill(pid, signal.SIGKILL)
        await asyncio.wait_for(task, 30)

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert len(told) == 1 and f"{name} must live" in told[0]


def test_a_reward_worker_that_stops_or_dies_is_restarted_and_named(ray, watch, caplog):
    """A stopped one is killed on its host, because Ray cannot end it. Its last restart used up, the run ends.

    It is killed after 10 seconds of silence, and has 20 to start again, which took 6 on a busy machine.
    """
    told, worker = [], ray.remote(num_cpus=0.1, max_restarts=1, max_task_retries=1)(AsyncPart).remote()
    pid = ray.get(worker.pid.remote())
    (_, actor) = watch.engine_actors(SimpleNamespace(_load_balancer=None), [worker])

    async def until(true):
        async with asyncio.timeout(60):
            while not true():
                await asyncio.sleep(0.05)

    async def scenario():
        task = asyncio.create_task(watch.ActorWatch(told.append, 30.0).watch(actor))
        await asyncio.sleep(3)  # it has answered once by then, also on a busy machine
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: "reward_loop_worker_0 died; Ray has restarted it on" in caplog.text)
        assert "is killed, so that Ray restarts it" in caplog.text and not told
        os.kill(await worker.pid.remote(), signal.SIGKILL)
        await asyncio.wait_for(task, 60)

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert len(told) == 1 and "reward_loop_worker_0 must live, because rollouts are scored there" in told[0]


def test_servers_and_the_load_balancer_are_found(ray, watch):
    server = ray.remote(num_cpus=0.1)(AsyncPart).options(name="vllm_server_7_0").remote()
    found = {actor.name: actor for actor in watch.engine_actors(SimpleNamespace(_load_balancer="its handle"), None)}
    assert found.keys() == {"vllm_server_7_0", "the load balancer"} and found["the load balancer"].handle
    assert not found["vllm_server_7_0"].restarts
    ray.kill(server)
