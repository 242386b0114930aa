"""The agent-loop workers as the coordinator sees them: rows and tasks go out, results come back, the dead are replaced.

One open call of Ray a worker returns its results, and nothing every ``BEAT_SECONDS``. If the worker's process dies Ray
fails the call. A worker whose call does not return is killed first, so that nothing of it can write rows any more when
another takes its prompts over.
"""

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayActorError

from apportion.verl.actor_watch import ActorWatch, WatchedActor, end_trainer
from apportion.verl.coordinator.messages import TrainerRequest, Validated, WorkerPlace, WorkerTask
from apportion.verl.coordinator.service import Coordinator
from apportion.verl.coordinator.settings import TimeLimits
from apportion.verl.phases import PhaseWatch
from apportion.verl.reports import BEAT_SECONDS, opened
from apportion.verl.worker_processes import KILL_SECONDS, RESTARTS, kill, result_of

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
"""Time between two looks whether Ray has restarted a worker."""

EXPIRY_SECONDS = 0.5
"""Time between two looks for tasks whose time is over."""

REPORT_SECONDS = 60.0
"""Time between two lines of the log while no result comes, or while the trainer is at one line of a step."""


@dataclass
class KeptRows:
    """References to the rows of a request, in chunks, for workers that take them over."""

    chunks: Sequence[Any]


class WorkerGroup:
    """The workers by their names in Ray. It must be made and used in one event loop.

    Args:
        coordinator: gets results and deaths. Its tasks go through this group.
        handles: Ray's handle of each worker.
        silent_seconds: a worker that was not heard of for so long is killed.
        limits: the bounds of waits.
        others: what rollouts need beside these workers. Their deaths end the run.
        phase: sees where the trainer waits.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        handles: Mapping[str, Any],
        silent_seconds: float,
        limits: TimeLimits,
        others: Sequence[WatchedActor] = (),
        phase: PhaseWatch | None = None,
    ) -> None:
        self._coordinator = coordinator
        coordinator.pool = self
        self._handles = dict(handles)
        self._silent_seconds, self._limits, self._others = silent_seconds, limits, others
        self._phase, self._ending = phase or PhaseWatch(), False
        self._others_watch = ActorWatch(self._end_run, limits.answer)
        self._places: dict[str, WorkerPlace] = {}
        self._heard: dict[str, float] = {}
        self._useful: set[str] = set()
        self._rows: dict[str, KeptRows] = {}
        self._validating: dict[str, tuple[str, KeptRows]] = {}
        self._silent: dict[str, asyncio.Event] = {}
        self._waiting: dict[str, list[WorkerTask]] = {}
        self._waiting_since = time.monotonic()
        self._unsettled = set(handles)
        self._ready = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watches: list[asyncio.Task[None]] = []

    @property
    def living(self) -> list[str]:
        """The names of the workers that can be given tasks."""
        return list(self._places)

    async def start(self) -> None:
        """Return once every worker lives or is gone for good. Raises RuntimeError if none lives."""
        self._watches = [self._run(self._watch(name)) for name in self._handles]
        self._run(self._look_for_silent())
        self._run(self._expire())
        self._run(self._report())
        self._run(self._watch_trainer())
        for other in self._others:
            self._run(self._others_watch.watch(other))
        await self._ready.wait()
        self._coordinator.check()

    def close(self) -> None:
        """End all tasks."""
        for task in self._tasks:
            task.cancel()

    def open(self, request: TrainerRequest, chunks: Sequence[Any]) -> None:
        """Give the rows of ``request`` to its workers, and begin the round. Chunk i is that of the i-th worker."""
        self._note_begin()
        self._rows[request.id] = KeptRows(chunks)
        self._coordinator.open(request)
        for name, chunk in zip(dict.fromkeys(request.workers), chunks, strict=True):
            if name in self._places:
                self._deliver(name, self._handles[name].generate_sequences.remote(chunk))
            else:
                self._coordinator.lose(name, self.living)

    def validate(self, owners: Mapping[str, Sequence[str]], chunks: Sequence[Any]) -> None:
        """Give rows of validation to workers; ``owners`` are the uids of each worker's chunk."""
        self._note_begin()
        rows = KeptRows(chunks)
        for (name, uids), chunk in zip(owners.items(), chunks, strict=True):
            self._validating.update(dict.fromkeys(uids, (name, rows)))
            if name in self._places:
                self._deliver(name, self._handles[name].generate_sequences.remote(chunk))
            else:
                self._move_validation(name)

    def send(self, worker: str, task: WorkerTask) -> None:
        """Send ``task``, with all others of this turn of the event loop.

        Drop it if the worker is gone; its watch then has another do it.
        """
        if worker in self._places:
            if not self._waiting:
                asyncio.get_running_loop().call_soon(self._flush)
            self._waiting.setdefault(worker, []).append(task)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for name, tasks in waiting.items():
            if name in self._places:
                self._deliver(name, self._handles[name].carry_out.remote(tasks))

    def hand_over(self, worker: str, request: TrainerRequest, uids: Sequence[str]) -> None:
        """Have ``worker`` take over the rows of ``uids``."""
        self._deliver(worker, self._handles[worker].take_over.remote(self._rows[request.id].chunks, list(uids)))

    def forget_rows(self, request: TrainerRequest) -> None:
        """Release the references to the rows of ``request``."""
        self._rows.pop(request.id, None)

    def _note_begin(self) -> None:
        """Measure the wait for a result from now on, if nothing was waited for."""
        if not self._coordinator.waits and not self._validating:
            self._waiting_since = time.monotonic()

    def _receive(self, name: str, values: Sequence[bytes]) -> None:
        """Take what a worker reports, which may be nothing."""
        self._heard[name] = time.monotonic()
        if values:
            self._useful.add(name)
            self._waiting_since = time.monotonic()
            results = opened(values)
            for each in results:
                if isinstance(each, Validated):
                    self._validating.pop(each.uid, None)
            self._coordinator.receive([each for each in results if not isinstance(each, Validated)])
            self._name_silent()

    def _move_validation(self, worker: str) -> None:
        """Divide the rows of validation of ``worker`` among the living; they wait under "" if there is none."""
        turns, given = itertools.cycle(self.living or [""]), dict[tuple[str, int], list[str]]()
        kept: dict[int, KeptRows] = {}
        for uid, (owner, rows) in self._validating.items():
            if owner == worker:
                name = next(turns)
                self._validating[uid] = (name, rows)
                given.setdefault((name, id(rows)), []).append(uid)
                kept[id(rows)] = rows
        for (name, rows_id), uids in given.items():
            if name:
                self._deliver(name, self._handles[name].take_over.remote(kept[rows_id].chunks, uids))

    def _deliver(self, worker: str, call: Awaitable[Any]) -> None:
        silent = self._silent[worker]

        async def deliver() -> None:
            try:
                await call
            except RayActorError as error:
                logger.info("Worker %s died with what it was given: %s", worker, error)
                if self._silent.get(worker) is silent:  # not that of a later life
                    self._give_up(worker, "could not be given rows or tasks")  # Ray may only have lost its connection
            except Exception as error:
                logger.exception("Worker %s cannot be given rows or tasks", worker)
                self._coordinator.fail(f"worker {worker} cannot be given rows or tasks: {error}")

        self._run(deliver())

    def _run(self, work: Any) -> asyncio.Task[None]:
        """Run ``work`` beside the rest. A fault in it ends the run."""
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("The coordinator failed", exc_info=error)
            self._fail(f"the coordinator failed: {error!r}")

    def _fail(self, message: str) -> None:
        self._coordinator.fail(message)
        self._ready.set()

    def _name_silent(self) -> None:
        """Name the actors that do not answer in an error that may follow from their silence."""
        error, silent = self._coordinator.error, ", ".join(sorted(self._others_watch.silent))
        if error is not None and silent and silent not in error:
            self._coordinator.error = f"{error} (no answer of {silent})"

    def _end_run(self, message: str) -> None:
        """Fail, and end a trainer that does not notice because it waits for what cannot come."""
        where, _ = self._phase.look(0.0)
        message += f" (the trainer is at {where})" if where and where not in message else ""
        self._fail(message)
        if not self._ending:
            self._ending = True
            self._run(end_trainer(message, lambda: bool(self._phase.look(0.0)[0])))

    async def _watch(self, name: str) -> None:
        """Watch a worker through its restarts, until it is gone for good or has died so often without a result."""
        lives = 0
        while lives <= RESTARTS and (place := await self._find(name)) is not None:
            self._join(name, place)
            error = await self._listen(name)
            lives = 1 if name in self._useful else lives + 1
            await self._part(name, error)
        if not lives:
            limit = self._limits.start
            self._fail(f"worker {name} must start within {limit:g} seconds, got no answer; see Ray's log for why")
        elif lives > RESTARTS:
            logger.error("Worker %s died %d times without a result; it counts as gone", name, lives)
            ray.kill(self._handles[name])
        self._settle(name)
        if all(watch.done() or watch is asyncio.current_task() for watch in self._watches):
            self._fail(
                f"agent-loop workers must live, got none of {len(self._handles)}; see Ray's log for why they died"
            )

    def _join(self, name: str, place: WorkerPlace) -> None:
        """Register a worker, and give it what no other could take."""
        self._places[name], self._heard[name], self._silent[name] = place, time.monotonic(), asyncio.Event()
        self._coordinator.lose("", [name])
        self._move_validation("")
        self._settle(name)

    async def _listen(self, name: str) -> BaseException:
        """Take what a worker reports until its process is dead. Return how it ended."""
        stopped: asyncio.Future[Any] = asyncio.ensure_future(self._silent[name].wait())
        try:
            while True:
                call = asyncio.ensure_future(result_of(self._handles[name].reports.remote()))
                await asyncio.wait([call, stopped], return_when=asyncio.FIRST_COMPLETED)
                if not call.done():
                    await asyncio.wait([call], timeout=KILL_SECONDS)
                if not call.done():
                    call.cancel()
                    return TimeoutError(f"its process was killed, and Ray did not notice within {KILL_SECONDS:g} s")
                error = call.exception()
                if isinstance(error, RayActorError):
                    return error
                self._receive(name, call.result())
        finally:
            stopped.cancel()

    def _settle(self, name: str) -> None:
        self._unsettled.discard(name)
        if not self._unsettled:
            self._ready.set()

    async def _part(self, name: str, error: BaseException) -> None:
        """Have others take over from a worker, once it is certain that its process is gone."""
        place = self._places.pop(name)
        del self._heard[name], self._silent[name]
        self._useful.discard(name)
        self._waiting.pop(name, None)
        if not isinstance(error, ActorDiedError):
            await kill(name, place)
        if self._coordinator.waits or self._validating:
            whither = "others take over" if self.living else "none is left"
            logger.error("Worker %s on %s died; %s", name, place.host, whither)
            logger.error("Ray says: %s", error)
        self._coordinator.lose(name, self.living)
        self._move_validation(name)

    async def _find(self, name: str) -> WorkerPlace | None:
        """Wait until a worker lives, and return where. Return None if it is gone for good, or takes too long."""
        deadline = time.monotonic() + self._limits.start
        while (left := deadline - time.monotonic()) > 0:
            try:
                found: WorkerPlace = await asyncio.wait_for(result_of(self._handles[name].place.remote()), left)
            except ActorDiedError:
                return None
            except (RayActorError, TimeoutError):
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return found
        logger.error("Ray did not restart worker %s within %.0f s; it counts as gone", name, self._limits.start)
        return None

    async def _look_for_silent(self) -> None:
        """Kill workers that report nothing. Ray then says that they died."""
        pause = min(BEAT_SECONDS, self._silent_seconds / 4)
        while True:
            before = time.monotonic()
            await asyncio.sleep(pause)
            now = time.monotonic()
            busy = max(0.0, now - before - pause)  # this process was stopped or busy, and reports wait to be read
            for name, heard in list(self._heard.items()):
                self._heard[name] = heard = min(now, heard + busy)
                if now - heard > self._silent_seconds:
                    self._give_up(name, f"was silent for {now - heard:.0f} s")

    def _give_up(self, name: str, why: str) -> None:
        """Kill a worker whose death is not known yet. Its watch then acts as if Ray had reported it."""
        if not self._silent[name].is_set():
            place = self._places[name]
            logger.error("Worker %s on %s %s; it is killed", name, place.host, why)
            self._silent[name].set()
            self._run(kill(name, place))

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_SECONDS)
            self._coordinator.expire(time.monotonic())
            self._name_silent()

    async def _report(self) -> None:
        """Say every minute without a result what is waited for."""
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            silence = time.monotonic() - self._waiting_since
            waits = Counter(self._coordinator.waits) + Counter(owner for owner, _ in self._validating.values())
            if waits and silence >= REPORT_SECONDS:
                logger.warning("No result for %.0f s. Waiting for %s", silence, self._described(waits))

    async def _watch_trainer(self) -> None:
        """Say every minute at which line of a step the trainer waits. End the run if it stays there for too long."""
        said = 0.0
        pause = min(REPORT_SECONDS, self._limits.wait) / 6
        while True:
            await asyncio.sleep(pause)
            where, waited = self._phase.look(pause)
            said = min(said, waited)
            silent = ", ".join(sorted(self._others_watch.silent)) or "no actor that is watched"
            if waited >= self._limits.wait:
                self._end_run(
                    f"the trainer must leave {where} within {self._limits.wait:g} seconds, got {waited:.0f} s, silent: "
                    f"{silent}; look at the hosts of its workers, or raise allocation.wait_seconds if it only is slow"
                )
                return
            if waited - said >= REPORT_SECONDS:
                said = waited
                logger.warning("The trainer has been at %s for %.0f s; silent: %s", where, waited, silent)

    def _described(self, waits: Mapping[str, int]) -> str:
        now, found = time.monotonic(), []
        for name, count in sorted(waits.items()):
            place, heard = self._places.get(name), self._heard.get(name)
            if place is None or heard is None:
                found.append(f"{count} tasks of {name or 'no worker'}, until Ray restarts it")
            else:
                found.append(f"{count} tasks of {name} on {place.host}, heard of {now - heard:.0f} s ago")
        return "; ".join(found)
