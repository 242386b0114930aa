"""The processes of workers: kill one on its host, and notice that it is dead."""

import asyncio
import logging
import os
from typing import Any

import psutil
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from apportion.verl.coordinator.messages import WorkerPlace

logger = logging.getLogger(__name__)

RESTARTS = 16
"""How often a worker is restarted that dies before it has done anything; a reward worker in all of a run."""

KILL_SECONDS = 60.0
"""How long it may take to kill a process on its host. A host that is gone takes Ray about as long to notice."""

STARTED_SECONDS = 60.0
"""How far apart two readings of a process's start may be, because the system's clock is corrected now and then."""


async def kill(name: str, place: WorkerPlace) -> None:
    """Kill the process of a worker on its host, unless it is gone."""
    if place.node == ray.get_runtime_context().get_node_id():
        end_process(place.pid, place.started)
        return
    there = NodeAffinitySchedulingStrategy(place.node, soft=False)
    call = ray.remote(num_cpus=0, max_retries=0)(end_process).options(scheduling_strategy=there)
    try:
        await asyncio.wait_for(result_of(call.remote(place.pid, place.started)), KILL_SECONDS)
    except (RayError, TimeoutError) as error:
        # a node that Ray has lost ends its processes by itself
        logger.error("Worker %s cannot be killed on %s; its host counts as lost: %s", name, place.host, error)


def end_process(pid: int, started: float) -> None:
    """Kill the process ``pid`` if it is the one that ``started`` then, in seconds since the epoch."""
    try:
        if abs(psutil.Process(pid).create_time() - started) < STARTED_SECONDS:
            os.kill(pid, 9)
    except (psutil.NoSuchProcess, ProcessLookupError):
        return


async def result_of(call: Any) -> Any:
    """Return the result of a call of Ray. asyncio takes a coroutine, which such a call is not."""
    return await call
