"""The processes of actors: ask where one runs, measure its silence, and kill it on its host."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import psutil
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from apportion.verl.coordinator.messages import WorkerPlace

logger = logging.getLogger(__name__)

RESTARTS = 16
"""How often a worker is restarted that dies before it has done anything. A reward worker has as many in all of a
run."""

KILL_SECONDS = 60.0
"""How long it may take to kill a process on its host. A host that is gone takes Ray about as long to notice."""

STARTED_SECONDS = 60.0
"""Largest difference, in seconds, between two readings of a process's start. The system's clock may be corrected
between."""


async def place_of(handle: Any) -> WorkerPlace:
    """Return where the actor of ``handle`` runs. Raises what Ray does if it is dead."""

    def where(actor: Any) -> tuple[str, str, int, float]:  # sent by value: the actor need not import this package
        import os  # noqa: PLC0415 - in the actor's process
        import socket  # noqa: PLC0415

        import psutil  # noqa: PLC0415
        import ray  # noqa: PLC0415

        node = ray.get_runtime_context().get_node_id()
        return node, socket.gethostname(), os.getpid(), psutil.Process().create_time()

    return WorkerPlace(*await handle.__ray_call__.remote(where))


async def silence(call: "asyncio.Future[Any]", pause: float) -> AsyncIterator[float]:
    """Yield after every ``pause`` for how many seconds ``call`` has not returned, until it has.

    It is a sum of pauses, because this process may have been stopped itself.
    """
    for seconds in count(pause, pause):
        if (await asyncio.wait([call], timeout=pause))[0]:
            return
        yield seconds


async def kill(name: str, place: WorkerPlace) -> None:
    """Kill the process of a worker on its host, unless it is gone."""
    if place.node == ray.get_runtime_context().get_node_id():
        end_process(place.pid, place.started)
        return
    there = NodeAffinitySchedulingStrategy(place.node, soft=False)
    call = ray.remote(num_cpus=0, max_retries=0)(end_process).options(scheduling_strategy=there)
    try:
        await asyncio.wait_for(call.remote(place.pid, place.started), KILL_SECONDS)
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
