"""The processes of workers: kill one on its host, and notice that it is dead."""

import asyncio
import logging
import os
from typing import Any

import psutil
import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from apportion.verl.coordinator.messages import WorkerPlace

logger = logging.getLogger(__name__)

RESTARTS = 16
"""How often Ray restarts a worker. Runs of weeks lose a worker now and then; one that always dies ends the run soon."""

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


async def death(alive: asyncio.Future[Any], silent: asyncio.Event) -> BaseException:
    """Wait for the end of a call that only a death ends, and return its exception.

    A worker that was silent and killed counts as dead, also if Ray does not notice.
    """
    waiting: asyncio.Future[Any] = asyncio.create_task(silent.wait())
    await asyncio.wait([alive, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    await asyncio.wait([alive], timeout=KILL_SECONDS)
    if not alive.done():
        alive.cancel()
        return TimeoutError(f"its process was killed, and Ray did not notice within {KILL_SECONDS:g} seconds")
    error = alive.exception()
    if isinstance(error, RayActorError):
        return error
    raise RuntimeError("a worker ended its open call, which only its death may end") from error
