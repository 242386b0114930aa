"""Notice the death of TransferQueue's processes, without which no rollout can be written.

TransferQueue notices the death of a storage unit only after its time-outs, three of 200 seconds for each request. Its
requests to a dead controller never end, and those to a stopped process do not either.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayActorError

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""Time between two looks whether a process lives."""

ANSWER_SECONDS = 60.0
"""Time after which the log says that a process does not answer. It may be busy, so that the run goes on."""

STOPPED_SECONDS = 1800.0
"""Time without an answer after which a process counts as stopped, and the run ends."""

TRAINER_SECONDS = 30.0
"""Time in which the trainer may end with an error. Then it waits for what never comes, and its process is ended."""

CONTROLLER, STORAGE = "TransferQueueController", "TransferQueueStorageUnit#"


def queue_actors() -> dict[str, Any]:
    """Return Ray's handles of TransferQueue's controller and storage units; {} without a TransferQueue."""
    found = {name: ray.get_actor(name) for name in ray.util.list_named_actors() if name.startswith(STORAGE)}
    try:
        found[CONTROLLER] = ray.get_actor(CONTROLLER, namespace="transfer_queue")
    except ValueError:  # there is none
        logger.info("TransferQueue has no controller to be watched")
    return found


async def watch_actor(name: str, handle: Any, fail: Callable[[str], None]) -> None:
    """Call ``fail`` with a message once the actor ``name`` is dead and not restarted, or stopped. Return then."""
    while True:
        answer, asked = asyncio.ensure_future(_answer(handle)), time.monotonic()
        while not (await asyncio.wait([answer], timeout=ANSWER_SECONDS))[0]:
            silence = time.monotonic() - asked
            logger.warning("%s has not answered for %.0f s", name, silence)
            if silence >= STOPPED_SECONDS:
                answer.cancel()
                fail(
                    f"{name} must answer, because rollouts are stored there, got no answer for {silence:.0f} s; look "
                    "at its host, and resume from the newest checkpoint with trainer.resume_mode=auto"
                )
                return
        error = answer.exception()
        if isinstance(error, ActorDiedError):
            fail(
                f"{name} must live, because rollouts are stored there, got its death; see Ray's log for why it died, "
                "and resume from the newest checkpoint with trainer.resume_mode=auto"
            )
            return
        if error is not None and not isinstance(error, RayActorError):
            raise error
        await asyncio.sleep(LOOK_SECONDS)


async def end_trainer(message: str) -> None:
    """End this process, the trainer's, with ``message`` in its log, if it does not end by itself in time."""
    await asyncio.sleep(TRAINER_SECONDS)
    logger.critical("The trainer is ended, because it waits for a dead TransferQueue: %s", message)
    logging.shutdown()
    os._exit(1)


async def _answer(handle: Any) -> Any:
    return await handle.__ray_ready__.remote()
