"""The agent-loop workers as the coordinator sees them: rows and tasks go out, results come back, the dead are replaced.

Ray reports the death of a worker's process. A worker that is silent is killed first, so that nothing of it can write
rows any more when another takes its prompts over.
"""

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray.exceptions import ActorDiedError, RayActorError

from apportion.verl.actor_watch import ActorWatch, WatchedActor, end_trainer
from apportion.verl.channel import BEAT_SECONDS, CoordinatorChannel
from apportion.verl.coordinator.messages import TaskResult, TrainerRequest, Validated, WorkerPlace, WorkerTask
from apportion.verl.coordinator.service import Coordinator
from apportion.verl.coordinator.settings import TimeLimits
from apportion.verl.phases import PhaseWatch
from apportion.verl.worker_processes import death, kill, result_of

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
        host: IP address of this node that the workers reach.
        silent_seconds: a worker that was not heard of for so long is killed.
        limits: the bounds of waits.
        others: what rollouts need beside these workers. Their deaths end the run.
        phase: sees where the trainer waits.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        handles: Mapping[str, Any],
        host: str,
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
        self._names: dict[str, str] = {}
        self._channels: dict[str, str] = {}
        self._places: dict[str, WorkerPlace] = {}
        self._placed: dict[str, asyncio.Event] = {}
        self._rows: dict[str, KeptRows] = {}
        self._validating: dict[str, tuple[str, KeptRows]] = {}
        self._silent: dict[str, asyncio.Event] = {}
        self._waiting_since = time.monotonic()
        self._unsettled = set(handles)
        self._ready = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watches: list[asyncio.Task[None]] = []
        self._channel = CoordinatorChannel(host, self._receive, self._send_again)

    @property
    def living(self) -> list[str]:
        """The names of the workers that can be given tasks."""
        return list(self._channels)

    async def start(self) -> None:
        """Return once every worker is connected or gone for good. Raises RuntimeError if none is connected."""
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
        """End all tasks, and the channel."""
        for task in self._tasks:
            task.cancel()
        self._channel.close()

    def open(self, request: TrainerRequest, chunks: Sequence[Any]) -> None:
        """Give the rows of ``request`` to its workers, and begin the round. Chunk i is that of the i-th worker."""
        self._note_begin()
        self._rows[request.id] = KeptRows(chunks)
        self._coordinator.open(request)
        for name, chunk in zip(dict.fromkeys(request.workers), chunks, strict=True):
            if name in self._channels:
                self._deliver(name, self._handles[name].generate_sequences.remote(chunk))
            else:
                self._coordinator.lose(name, self.living)

    def validate(self, owners: Mapping[str, Sequence[str]], chunks: Sequence[Any]) -> None:
        """Give rows of validation to workers; ``owners`` are the uids of each worker's chunk."""
        self._note_begin()
        rows = KeptRows(chunks)
        for (name, uids), chunk in zip(owners.items(), chunks, strict=True):
            self._validating.update(dict.fromkeys(uids, (name, rows)))
            if name in self._channels:
                self._deliver(name, self._handles[name].generate_sequences.remote(chunk))
            else:
                self._move_validation(name)

    def send(self, worker: str, task: WorkerTask) -> None:
        """Send ``task`` to a worker. Drop it if the worker is gone; its watch then has another do it."""
        if worker in self._channels:
            self._channel.put(self._channels[worker], task)

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

    def _receive(self, channel: str, values: Sequence[Any]) -> None:
        self._waiting_since = time.monotonic()
        results: list[TaskResult] = []
        for value in values:
            if isinstance(value, TaskResult):
                results.append(value)
            elif isinstance(value, Validated):
                self._validating.pop(value.uid, None)
            else:
                self._places[channel] = value
                self._placed[channel].set()
        self._coordinator.receive(results)

    def _send_again(self, channel: str) -> None:
        """Send a worker its tasks again, and give it its rows of validation, whose ends may be lost, again."""
        name = self._names[channel]
        if self._channels.get(name) != channel:
            return
        self._coordinator.send_again(name)
        if any(owner == name for owner, _ in self._validating.values()):
            self._move_validation(name, [name])

    def _move_validation(self, worker: str, others: Sequence[str] | None = None) -> None:
        """Divide the rows of validation of ``worker`` among ``others``; they wait under "" if there is none."""
        names = self.living if others is None else others
        turns, given = itertools.cycle(names or [""]), dict[tuple[str, int], list[str]]()
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
        channel = self._channels[worker]

        async def deliver() -> None:
            try:
                await call
            except RayActorError as error:
                logger.info("Worker %s died with the rows that it was given: %s", worker, error)
                self._give_up(channel, "could not be given rows")  # Ray may only have lost its connection
            except Exception as error:
                logger.exception("Rows cannot be given to worker %s", worker)
                self._coordinator.fail(f"rows cannot be given to worker {worker}: {error}")

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

    def _end_run(self, message: str) -> None:
        """Fail, and end a trainer that does not notice because it waits for what cannot come."""
        where, _ = self._phase.look(0.0)
        message += f" (the trainer is at {where})" if where and where not in message else ""
        self._fail(message)
        if not self._ending:
            self._ending = True
            self._run(end_trainer(message, lambda: bool(self._phase.look(0.0)[0])))

    async def _watch(self, name: str) -> None:
        """Watch a worker through its restarts, until it is gone for good."""
        handle = self._handles[name]
        for number in itertools.count():
            channel = f"{name}/{number}"
            self._names[channel] = name
            self._silent[channel], self._placed[channel] = asyncio.Event(), asyncio.Event()
            alive = asyncio.ensure_future(result_of(handle.attach.remote(self._channel.address, channel)))
            connected = asyncio.create_task(self._connect(channel))
            await asyncio.wait([alive, connected], timeout=self._limits.start, return_when=asyncio.FIRST_COMPLETED)
            if connected.done():
                self._join(name, channel)
            elif not alive.done() and number:
                logger.error(
                    "Worker %s did not connect again within %.0f s; it counts as gone", name, self._limits.start
                )
                alive.cancel()
                connected.cancel()
                self._channel.remove(channel)
                break
            elif not alive.done():
                connected.cancel()
                self._fail(
                    f"worker {name} must connect to {self._channel.address.endpoint} within {self._limits.start:g} "
                    "seconds, got no connection; let the nodes reach each other on all ports, as Ray and "
                    "TransferQueue need it"
                )
                self._settle(name)
                return
            connected.cancel()
            await self._part(name, channel, await death(alive, self._silent[channel]))
            if not await self._is_restarted(name):
                break
        self._settle(name)
        if all(watch.done() or watch is asyncio.current_task() for watch in self._watches):
            self._fail(
                f"agent-loop workers must live, got none of {len(self._handles)}; see Ray's log for why they died"
            )

    async def _connect(self, channel: str) -> None:
        """Wait until a worker is connected and has said where it runs, so that it can be killed."""
        await self._channel.add(channel)
        await self._placed[channel].wait()

    def _join(self, name: str, channel: str) -> None:
        """Register a worker, and give it what no other could take."""
        self._channels[name] = channel
        self._coordinator.lose("", [name])
        self._move_validation("", [name])
        self._settle(name)

    def _settle(self, name: str) -> None:
        self._unsettled.discard(name)
        if not self._unsettled:
            self._ready.set()

    async def _part(self, name: str, channel: str, error: BaseException) -> None:
        """Have others take over from a worker, once it is certain that its process is gone."""
        self._channel.remove(channel)
        self._channels.pop(name, None)
        del self._silent[channel], self._placed[channel]
        place = self._places.pop(channel, None)
        if place is not None and not isinstance(error, ActorDiedError):
            await kill(name, place)
        if self._coordinator.waits or self._validating:
            where = f" on {place.host}" if place else ""
            logger.error("Worker %s%s died; %s", name, where, "others take over" if self.living else "none is left")
            logger.error("Ray says: %s", error)
        self._coordinator.lose(name, self.living)
        self._move_validation(name)

    async def _is_restarted(self, name: str) -> bool:
        """Wait until Ray has restarted a dead worker. Return False if it is gone for good, or takes too long."""
        deadline = time.monotonic() + self._limits.start
        while time.monotonic() < deadline:
            try:
                await asyncio.wait_for(result_of(self._handles[name].name.remote()), deadline - time.monotonic())
            except ActorDiedError:
                return False
            except (RayActorError, TimeoutError):
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return True
        logger.error("Ray did not restart worker %s within %.0f s; it counts as gone", name, self._limits.start)
        return False

    async def _look_for_silent(self) -> None:
        """Kill workers without beats. Ray then reports their deaths."""
        pause = min(BEAT_SECONDS, self._silent_seconds / 4)
        while True:
            before = time.monotonic()
            await asyncio.sleep(pause)
            now = time.monotonic()
            busy = max(0.0, now - before - pause)  # this process was stopped or busy itself, and beats wait to be read
            for channel, heard in list(self._channel.beats.items()):
                self._channel.beats[channel] = heard = min(now, heard + busy)
                if now - heard > self._silent_seconds:
                    self._give_up(channel, f"was silent for {now - heard:.0f} s")

    def _give_up(self, channel: str, why: str) -> None:
        """Kill a worker whose death is not known yet. Its watch then acts as if Ray had reported it."""
        place = self._places.get(channel)
        if place is not None and not self._silent[channel].is_set():
            name = self._names[channel]
            logger.error("Worker %s on %s %s; it is killed", name, place.host, why)
            self._silent[channel].set()
            self._run(kill(name, place))

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_SECONDS)
            self._coordinator.expire(time.monotonic())

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
            channel = self._channels.get(name, "")
            place, heard = self._places.get(channel), self._channel.beats.get(channel)
            if place is None or heard is None:
                found.append(f"{count} tasks of {name or 'no worker'}, until Ray restarts it")
            else:
                found.append(f"{count} tasks of {name} on {place.host}, heard of {now - heard:.0f} s ago")
        return "; ".join(found)
