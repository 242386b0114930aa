"""Notice that an actor which rollouts need has died or stopped: TransferQueue's, a rollout server, a reward worker.

TransferQueue notices the death of a storage unit only after its time-outs, three of 200 seconds for each request. Its
requests to a dead controller never end. verl waits for a stopped server for ever when it puts the servers to sleep or
sends them weights, and it gives a dead reward worker its share of the rollouts, which then fail. Agent-loop workers
have a watch of their own.
"""

import _thread
import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayActorError

from apportion.verl.worker_processes import kill, place_of, silence

logger = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
"""Seconds between two checks of whether a process lives."""

ANSWER_SECONDS = 60.0
"""Seconds after which the log reports a process that does not answer, again and again. The run goes on: it may be
busy."""

TRAINER_SECONDS = 30.0
"""Seconds that the trainer has to end with an error. After them its wait is interrupted, and later its process is
ended."""

INTERRUPTS, INTERRUPT_SECONDS = 5, 3.0
"""How often the trainer's wait is interrupted, and the time between two interrupts."""

CONTROLLER, STORAGE, SERVER, REWARDER = "TransferQueueController", "TransferQueueStorageUnit#", "server_", "reward_loop"
"""Names of actors, and parts of names: verl's servers are called ``vllm_server_0_0`` and so on."""


@dataclass(frozen=True)
class WatchedActor:
    """An actor that rollouts need. If Ray ``restarts`` it, it is killed when it is silent."""

    name: str
    handle: Any
    part: str
    restarts: bool = False


def queue_actors() -> list[WatchedActor]:
    """Return TransferQueue's controller and storage units; none without a TransferQueue."""
    names = [name for name in ray.util.list_named_actors() if name.startswith(STORAGE)]
    found = [(name, ray.get_actor(name)) for name in names]
    try:
        found.append((CONTROLLER, ray.get_actor(CONTROLLER, namespace="transfer_queue")))
    except ValueError:  # there is none
        logger.info("TransferQueue has no controller to be watched")
    return [WatchedActor(name, handle, "stored there") for name, handle in found]


def engine_actors(client: Any, rewarders: Sequence[Any] | None) -> list[WatchedActor]:
    """Return verl's rollout servers, its load balancer, and ``rewarders``, its reward workers if rollouts need them."""
    servers = [name for name in ray.util.list_named_actors() if SERVER in name]
    found = [WatchedActor(name, ray.get_actor(name), "sampled there") for name in sorted(servers)]
    found.append(WatchedActor("the load balancer", client._load_balancer, "given their servers there"))
    names = (f"{REWARDER}_worker_{i}" for i in range(len(rewarders or ())))
    return found + [WatchedActor(*each, "scored there", True) for each in zip(names, rewarders or (), strict=True)]


@dataclass
class ActorWatch:
    """Watches actors. ``fail`` is called with a message once one is dead for good, or silent for ``seconds``.

    ``silent`` holds the actors that do not answer at present.
    """

    fail: Callable[[str], None]
    seconds: float
    silent: set[str] = field(default_factory=set)

    async def watch(self, actor: WatchedActor) -> None:
        """Watch ``actor`` until it fails the run."""
        name, place, killed = actor.name, None, None
        pause = min(ANSWER_SECONDS, self.seconds / 4)
        while True:
            answer = asyncio.ensure_future(place_of(actor.handle))
            async for seconds in silence(answer, pause):
                self.silent.add(name)
                logger.warning("%s has not answered for %.0f s%s", name, seconds, f" on {place.host}" if place else "")
                if seconds >= self.seconds:
                    answer.cancel()
                    self._fail(actor, "answer", f"no answer for {seconds:.0f} s; look at its host")
                    return
                if actor.restarts and place and place is not killed and seconds >= self.seconds / 3:
                    logger.error("%s on %s is killed, so that Ray restarts it", name, place.host)
                    await kill(name, place)
                    killed = place  # its restart has the rest of the limit to answer
            self.silent.discard(name)
            error = answer.exception()
            if isinstance(error, ActorDiedError):
                self._fail(actor, "live", "its death; see Ray's log for why it died")
                return
            if error is not None and not isinstance(error, RayActorError):
                raise error
            if error is None:
                if place is not None and place.pid != answer.result().pid:
                    logger.error("%s died; Ray has restarted it on %s", name, answer.result().host)
                place = answer.result()
            await asyncio.sleep(LOOK_SECONDS)

    def _fail(self, actor: WatchedActor, must: str, got: str) -> None:
        self.fail(
            f"{actor.name} must {must}, because rollouts are {actor.part}, got {got}, and resume from the newest "
            "checkpoint with trainer.resume_mode=auto"
        )


async def end_trainer(message: str, waits: Callable[[], bool]) -> None:
    """End this process, the trainer's, with ``message`` in its log, if it does not end by itself in time.

    It is interrupted first while it ``waits``, so that its own error is the cause. See ``AllocatedTaskRunner``.
    """
    await asyncio.sleep(TRAINER_SECONDS)
    logger.critical("The trainer is ended, because it waits for what cannot come: %s", message)
    for _ in range(INTERRUPTS):  # a wait in ray.get within asyncio takes two
        if waits():
            _thread.interrupt_main()  # reaches ray.get
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]  # and asyncio
            await asyncio.sleep(INTERRUPT_SECONDS)
    await asyncio.sleep(TRAINER_SECONDS)
    logging.shutdown()
    os._exit(1)
