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


def test_servers_the_load_balancer_and_reward_workers_are_found(ray, watch):
    """``test_fault_table`` has what comes of one that stops or dies."""
    server = ray.remote(num_cpus=0.1)(AsyncPart).options(name="vllm_server_7_0").remote()
    actors = watch.engine_actors(SimpleNamespace(_load_balancer="its handle"), ["another handle"])
    assert {actor.name: (actor.handle, actor.part, actor.restarts) for actor in actors} == {
        "vllm_server_7_0": (server, "sampled there", False),
        "the load balancer": ("its handle", "given their servers there", False),
        "reward_loop_worker_0": ("another handle", "scored there", True),
    }
    ray.kill(server)
