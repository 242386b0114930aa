"""The agent-loop workers as the coordinator sees them: they get rows and tasks, report results, and are replaced.

One open call of Ray a worker returns its results, and nothing every ``BEAT_SECONDS``. If the worker's process dies Ray
fails the call. A worker whose call does not return is killed first, so that nothing of it can write rows any more when
another takes its prompts over.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayActorError

from apportion.verl.actor_watch import ActorWatch, WatchedActor, end_trainer
from apportion.verl.coordinator.messages import TrainerRequest, WorkerPlace, WorkerTask
from apportion.verl.coordinator.service import Coordinator
from apportion.verl.phases import PhaseWatch
from apportion.verl.reports import opened
from apportion.verl.worker_processes import KILL_SECONDS, RESTARTS, kill, place_of, silence

logger = logging.getLogger(__name__)

START_SECONDS, RETRY_SECONDS = 0.05, 0.5
"""Seconds between two checks of whether all workers have started, and of whether Ray has restarted a worker."""

LOOK_SECONDS = 0.5
"""Seconds between two checks for what takes too long: a silent worker, an overdue task, a waiting trainer."""

REPORT_SECONDS = 60.0
"""Seconds between two lines of the log while no result comes, or while the trainer stays at one line of a step."""


@dataclass(eq=False)
class LivingWorker:
    """One life of a worker. It is ``useful`` once it has reported, and ``silent`` is how many seconds ago that was.

    It is ``given_up`` when it is killed. ``waiting`` are the tasks of this turn of the event loop.
    """

    name: str
    handle: Any
    place: WorkerPlace
    silent: float = 0.0
    useful: bool = False
    given_up: bool = False
    waiting: list[WorkerTask] = field(default_factory=list)


class WorkerGroup:
    """The workers by their names in Ray. It must be made and used in one event loop.

    Args:
        coordinator: gets results and deaths. Its tasks go through this group. Its settings have the bounds of waits.
        handles: Ray's handle of each worker.
        others: what rollouts need beside these workers. Their deaths end the run.
        phase: sees where the trainer waits.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        handles: Mapping[str, Any],
        others: Sequence[WatchedActor] = (),
        phase: PhaseWatch | None = None,
    ) -> None:
        self._coordinator = coordinator
        coordinator.pool = self
        self._handles, self._others = dict(handles), others
        self._silent_seconds, self._limits = coordinator.allocation.silent_seconds, coordinator.allocation.limits
        self._phase, self._ending = phase or PhaseWatch(), False
        self._others_watch = ActorWatch(self._end_run, self._limits.answer)
        self._living: dict[str, LivingWorker] = {}
        self._resultless = 0.0  # seconds
        self._tasks: set[asyncio.Task[None]] = set()
        self._watches: dict[str, asyncio.Task[None]] = {}

    @property
    def living(self) -> list[str]:
        """The names of the workers that can be given tasks."""
        return list(self._living)

    async def start(self) -> None:
        """Return once every worker lives or is gone for good. Raises RuntimeError if none lives."""
        self._watches = {name: self._run(self._watch(name)) for name in self._handles}
        self._run(self._look())
        for other in self._others:
            self._run(self._others_watch.watch(other))
        while self._coordinator.error is None and not all(
            name in self._living or watch.done() for name, watch in self._watches.items()
        ):
            await asyncio.sleep(START_SECONDS)
        self._coordinator.check()

    def close(self) -> None:
        """End all tasks."""
        for task in self._tasks:
            task.cancel()

    def hand_out(self, request: TrainerRequest, begin: Callable[[TrainerRequest], None]) -> None:
        """Have the coordinator ``begin`` the ``request``, and give the request's rows to workers."""
        if not self._coordinator.waits:
            self._resultless = 0.0
        begin(request)
        for name, chunk in zip(dict.fromkeys(request.workers), request.chunks, strict=True):
            if (worker := self._living.get(name)) is not None:
                self._deliver(worker, worker.handle.generate_sequences.remote(chunk))
            else:
                self._coordinator.lose(name, self.living)

    def send(self, worker: str, task: WorkerTask) -> None:
        """Send ``task``, with all others of this turn of the event loop.

        Drop it if the worker is gone; its watch then has another do it.
        """
        if (found := self._living.get(worker)) is not None:
            if not found.waiting:
                asyncio.get_running_loop().call_soon(self._flush, found)
            found.waiting.append(task)

    def _flush(self, worker: LivingWorker) -> None:
        tasks, worker.waiting = worker.waiting, []
        if self._living.get(worker.name) is worker:
            self._deliver(worker, worker.handle.carry_out.remote(tasks))

    def hand_over(self, worker: str, request: TrainerRequest, uids: Sequence[str]) -> None:
        """Have ``worker`` take over the rows of ``uids``."""
        living = self._living[worker]
        self._deliver(living, living.handle.take_over.remote(request.chunks, list(uids)))

    def _receive(self, worker: LivingWorker, values: Sequence[bytes]) -> None:
        """Take a worker's report, which may be empty."""
        if values:
            worker.useful, self._resultless = True, 0.0
            self._coordinator.receive(opened(values))
            self._name_silent()

    def _deliver(self, worker: LivingWorker, call: Awaitable[Any]) -> None:
        async def deliver() -> None:
            try:
                await call
            except RayActorError as error:
                logger.info("Worker %s died with what it was given: %s", worker.name, error)
                if self._living.get(worker.name) is worker:
                    self._give_up(worker, "could not be given rows or tasks")  # Ray may only have lost its connection

        self._run(deliver())

    def _run(self, work: Any) -> asyncio.Task[None]:
        """Run ``work`` in the background. A fault in it ends the run."""
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("The coordinator or a worker failed", exc_info=error)
            self._coordinator.fail(f"the coordinator or a worker failed: {error!r}")

    def _name_silent(self) -> None:
        """Add the names of silent actors to an error that their silence may have caused."""
        error, silent = self._coordinator.error, ", ".join(sorted(self._others_watch.silent))
        if error is not None and silent and silent not in error:
            self._coordinator.error = f"{error} (no answer of {silent})"

    def _end_run(self, message: str) -> None:
        """Fail the run, and end a trainer that waits in vain and does not notice."""
        where, _ = self._phase.look(0.0)
        message += f" (the trainer is at {where})" if where and where not in message else ""
        self._coordinator.fail(message)
        if not self._ending:
            self._ending = True
            self._run(end_trainer(message, lambda: bool(self._phase.look(0.0)[0])))

    async def _watch(self, name: str) -> None:
        """Watch a worker through its restarts, until it is gone for good, or has died too often without a result."""
        lives = 0
        while lives <= RESTARTS and (place := await self._find(name)) is not None:
            worker = self._living[name] = LivingWorker(name, self._handles[name], place)
            self._coordinator.lose("", [name])  # what no other could take
            error = await self._listen(worker)
            lives = 1 if worker.useful else lives + 1
            await self._part(worker, error)
        if lives > RESTARTS:
            logger.error("Worker %s died %d times without a result; it counts as gone", name, lives)
            ray.kill(self._handles[name])
        if all(watch.done() or watch is asyncio.current_task() for watch in self._watches.values()):
            self._coordinator.fail(
                f"agent-loop workers must live, got none of {len(self._handles)}; see Ray's log for why they died"
            )

    async def _listen(self, worker: LivingWorker) -> BaseException:
        """Take a worker's reports until its process is dead, and return how it ended.

        Kill the worker if it is silent.
        """
        killed = 0.0
        while True:
            worker.silent = 0.0
            call: asyncio.Future[Any] = asyncio.ensure_future(worker.handle.reports.remote())
            async for worker.silent in silence(call, LOOK_SECONDS):
                if worker.silent > self._silent_seconds:
                    self._give_up(worker, f"was silent for {worker.silent:.0f} s")
                killed += LOOK_SECONDS * worker.given_up
                if killed > KILL_SECONDS:
                    call.cancel()
                    return TimeoutError(f"its process was killed, and Ray did not notice within {KILL_SECONDS:g} s")
            error = call.exception()
            if isinstance(error, RayActorError):
                return error
            self._receive(worker, call.result())

    async def _part(self, worker: LivingWorker, error: BaseException) -> None:
        """Have others take over from a worker, once its process is certainly gone."""
        del self._living[worker.name]
        if not isinstance(error, ActorDiedError):
            await kill(worker.name, worker.place)
        if self._coordinator.waits:
            whither = "others take over" if self._living else "none is left"
            logger.error("Worker %s on %s died; %s", worker.name, worker.place.host, whither)
            logger.error("Ray says: %s", error)
        self._coordinator.lose(worker.name, self.living)

    async def _find(self, name: str) -> WorkerPlace | None:
        """Wait until a worker lives, and return where. Return None if it is gone for good, or takes too long."""
        deadline = time.monotonic() + self._limits.start
        while (left := deadline - time.monotonic()) > 0:
            try:
                return await asyncio.wait_for(place_of(self._handles[name]), left)
            except ActorDiedError:
                return None
            except (RayActorError, TimeoutError):
                await asyncio.sleep(RETRY_SECONDS)
        logger.error("Ray did not restart worker %s within %.0f s; it counts as gone", name, self._limits.start)
        return None

    async def _look(self) -> None:
        """Look regularly for what takes too long."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._coordinator.expire(time.monotonic())
            self._name_silent()
            self._look_for_results()
            self._look_at_trainer()

    def _give_up(self, worker: LivingWorker, why: str) -> None:
        """Kill a worker whose death is not known yet. Its watch then acts as if Ray had reported it."""
        if not worker.given_up:
            logger.error("Worker %s on %s %s; it is killed", worker.name, worker.place.host, why)
            worker.given_up = True
            self._run(kill(worker.name, worker.place))

    def _look_for_results(self) -> None:
        """Say every minute without a result what is waited for."""
        self._resultless += LOOK_SECONDS
        if _is_minute(self._resultless) and (waits := self._coordinator.waits):
            logger.warning("No result for %.0f s. Waiting for %s", self._resultless, self._described(waits))

    def _described(self, waits: Mapping[str, int]) -> str:
        found = []
        for name, count in sorted(waits.items()):
            if (worker := self._living.get(name)) is None:
                found.append(f"{count} tasks of {name or 'no worker'}, until Ray restarts it")
            else:
                found.append(f"{count} tasks of {name} on {worker.place.host}, heard of {worker.silent:.0f} s ago")
        return "; ".join(found)

    def _look_at_trainer(self) -> None:
        """Log every minute at which line of a step the trainer waits. End the run if it stays there for too long."""
        if self._ending:
            return
        where, waited = self._phase.look(LOOK_SECONDS)
        silent = ", ".join(sorted(self._others_watch.silent)) or "no actor that is watched"
        if waited >= self._limits.wait:
            self._end_run(
                f"the trainer must leave {where} within {self._limits.wait:g} seconds, got {waited:.0f} s, silent: "
                f"{silent}; look at the hosts of its workers, or raise allocation.wait_seconds if it only is slow"
            )
        elif _is_minute(waited):
            logger.warning("The trainer has been at %s for %.0f s; silent: %s", where, waited, silent)


def _is_minute(seconds: float) -> bool:
    """Return whether a sum of ``LOOK_SECONDS`` has reached a whole number of ``REPORT_SECONDS``, above 0."""
    return seconds >= REPORT_SECONDS and seconds % REPORT_SECONDS < LOOK_SECONDS
