"""verl's agent-loop worker, in which a row waits for orders: how many rollouts, and at last which are trained on."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue as tq
from ray.exceptions import RayError
from verl.experimental.agent_loop import AgentLoopOutput
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

from apportion.integrations.answers import Answers
from apportion.integrations.verl.messages import Order, Publication, Report, Task, Written, row_keys
from apportion.integrations.verl.outbox import Outbox
from apportion.integrations.verl.rows import PARTITION, publish
from apportion.integrations.verl.settings import SCORE, allocation_of, by_row
from apportion.types import Rollout
from apportion.verifiers.equivalence import Classes

logger = logging.getLogger(__name__)

SEAT_SECONDS = 300.0
"""How long a task waits for the row that it is about."""

WRITING_SECONDS = 0.05
"""Between two looks at whether rows that are on their way have arrived."""

COUNTS = ("__rollout_n__", "__do_sample__")
"""Columns by which a data set tells verl how to sample a row; verl takes them out before a row is written."""

REMEMBERED_HOSTS = 100_000
"""Hosts whose tasks are not carried out again when a coordinator that was restarted asks: more than are under way."""


@dataclass
class Seat:
    """A row that the trainer dispatched: its ``data``, and how verl runs an agent loop on it.

    ``writing`` are sessions whose rows are on their way to the TransferQueue, which no deadline interrupts; ``written``
    are the keys of all rows that are there, also of sessions that nobody waits for any more. Once it is ``closed``, and
    published, none begins to write.
    """

    data: dict[str, Any]
    sampling: dict[str, Any]
    trajectory: dict[str, Any]
    trace: bool
    classes: dict[str, Classes] = field(default_factory=dict)
    writing: set[int] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    closed: bool = False


class AllocatedWorker(AgentLoopWorkerTQ.__ray_actor_class__):  # type: ignore[misc]
    """Runs the sessions that the coordinator orders. Validation is verl's own, untouched."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.allocation, self._by_row = allocation_of(config), by_row(config)
        self._answers = Answers(self.allocation.extract, self.allocation.equivalence)
        self._seats: dict[str, asyncio.Future[Seat]] = {}
        self._reports: dict[str, dict[str, Report]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._outbox: Outbox[Report] = Outbox(self._send, self._abandoned)
        self._coordinator: Any = None
        self._relieved = asyncio.Event()

    def name(self) -> str:
        """Its name in Ray, by which a coordinator that was restarted finds it."""
        return str(ray.get_runtime_context().get_actor_name())

    async def attend(self, coordinator: Any) -> None:
        """Reports to ``coordinator``. Returns when another takes its place: until then it shows that it lives."""
        self._relieved.set()
        self._coordinator, self._relieved = coordinator, asyncio.Event()
        watch = asyncio.create_task(self._watched(coordinator))
        await self._relieved.wait()
        watch.cancel()

    async def carry_out(self, tasks: Sequence[Task]) -> None:
        """Begins ``tasks``; reports follow. One that was carried out before is reported again."""
        for task in tasks:
            known = self._reports.get(task.host, {}).get(task.id)
            if known is not None:
                self._outbox.put(known)
            elif task.id not in self._tasks:
                self._tasks[task.id] = asyncio.create_task(self._carried_out(task))

    async def take_over(self, chunks: Sequence[Any], hosts: Sequence[str]) -> None:
        """Takes the rows of ``hosts`` out of ``chunks``, references to what was dispatched to a worker that died."""
        wanted = set(hosts)
        for chunk in chunks:
            batch = await chunk
            places = [i for i, uid in enumerate(batch["uid"]) if uid in wanted]
            if places:
                await self.generate_sequences(batch[torch.tensor(places)])

    async def _run_prompt(
        self, prompt: dict[str, Any], sampling_params: dict[str, Any], trajectory: dict[str, Any], trace: bool = False
    ) -> None:
        """In place of verl's: the row takes its seat, and its rollouts come by order."""
        if trajectory["validate"]:
            await super()._run_prompt(prompt, sampling_params, trajectory, trace)
            return
        data = {key: value for key, value in prompt.items() if key not in COUNTS}
        host, seat = prompt["uid"], Seat(data, dict(sampling_params), trajectory, trace)
        # before it is seated, so that no publication, which waits for that, comes before it
        await tq.async_kv_put(key=host, partition_id=PARTITION, tag={"status": "running"})
        if host in self._seats and self._seats[host].done():
            del self._seats[host]
        self._seat(host).set_result(seat)

    def _seat(self, host: str) -> asyncio.Future[Seat]:
        if host not in self._seats:
            self._seats[host] = asyncio.get_running_loop().create_future()
        return self._seats[host]

    async def _taken(self, host: str) -> Seat:
        """The seat of ``host``, once its row is there: at once, or when it was taken over."""
        async with asyncio.timeout(SEAT_SECONDS):
            return await asyncio.shield(self._seat(host))

    async def _carried_out(self, task: Task) -> None:
        try:
            report = await (self._sampled(task) if isinstance(task, Order) else self._published(task))
        except Exception as error:
            logger.exception("%s of %s failed", type(task).__name__, task.host)
            report = Report(task.id, error=repr(error))
        self._remember(task, report)
        del self._tasks[task.id]
        self._outbox.put(report)

    def _remember(self, task: Task, report: Report) -> None:
        """Keeps what became of the tasks of a host, and of one that is published that alone; the oldest make room."""
        if isinstance(task, Publication):
            self._reports.pop(task.host, None)
        self._reports.setdefault(task.host, {})[task.id] = report
        if len(self._reports) > REMEMBERED_HOSTS:
            del self._reports[next(iter(self._reports))]

    async def _sampled(self, order: Order) -> Report:
        """The rollouts that arrive before the deadline, in the order of their sessions."""
        try:
            seat = await self._taken(order.place.host)
        except TimeoutError:  # the worker that had it died unseen
            return Report(order.id, failures=(f"the row of {order.place.host} is not here",), expired=True)
        data = seat.data if order.place.row is None else {**seat.data, **order.place.row}
        running = {session: asyncio.create_task(self._session(seat, data, session)) for session in order.sessions}
        late = (await asyncio.wait(running.values(), timeout=order.seconds))[1]
        for session, task in running.items():
            if task in late and session not in seat.writing:
                task.cancel()
        results = await asyncio.gather(*running.values(), return_exceptions=True)
        failures = tuple(repr(error) for error in results if isinstance(error, BaseException))
        for error in results:
            if isinstance(error, Exception):
                logger.error("A rollout of %s failed", order.place.host, exc_info=error)
        arrived = [
            (session, outputs)
            for session, outputs in zip(running, results, strict=True)
            if not isinstance(outputs, BaseException) and outputs
        ]
        rollouts = [await self._rollout(seat, order, session, outputs) for session, outputs in arrived]
        return Report(order.id, tuple(rollouts), failures, expired=bool(late))

    async def _session(self, seat: Seat, data: Mapping[str, Any], session: int) -> list[AgentLoopOutput] | None:
        outputs: list[AgentLoopOutput] | None = await self._run_agent_loop(
            dict(seat.sampling), trajectory=seat.trajectory, trace=seat.trace, session_id=session, **data
        )
        return outputs

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **kwargs: Any) -> list[AgentLoopOutput] | None:
        """Has verl score the outputs and write their rows, then hands them to the order that asked for them."""
        outputs: list[AgentLoopOutput] = output if isinstance(output, list) else [output]
        if validate:
            await super()._agent_loop_postprocess(output, validate, **kwargs)
            return None
        if self.allocation.label_free and outputs:  # the votes say what it is worth, and no reward function is asked
            outputs[-1].reward_score = 0.0
            outputs[-1].extra_fields.setdefault("reward_extra_info", {})
        if outputs:
            await self._compute_score(outputs, kwargs=kwargs)
        host, session = kwargs["uid"], kwargs["session_id"]
        seat = self._seats[host].result() if host in self._seats else None
        if seat is None or seat.closed:  # a row that is written now would be one of no group
            raise RuntimeError(f"session {session} of {host} ended after that was published; its rollout is left out")
        seat.writing.add(session)
        seat.written.update(row_keys(host, session, len(outputs)))
        try:
            await super()._agent_loop_postprocess(outputs, validate, **kwargs)
        finally:
            seat.writing.discard(session)
        return outputs

    async def _rollout(self, seat: Seat, order: Order, session: int, outputs: list[AgentLoopOutput]) -> Rollout:
        last = outputs[-1]
        tokens = sum(sum(output.response_mask) for output in outputs)
        ids = [np.asarray(output.response_ids, np.int64) for output in outputs]
        digest = hashlib.blake2b(np.concatenate(ids).tobytes(), digest_size=16).digest()
        lengths = tuple(len(each) for each in ids)
        if self.allocation.label_free:
            written = Written(digest, order.place.host, session, lengths)
            return Rollout(answer=await self._answer(seat, order, last), completion=written, tokens=tokens)
        reward = float(last.reward_score)
        correct = self._verdict(reward, last.extra_fields.get("reward_extra_info") or {})
        kept = correct and self.allocation.allocator.trains_on_reused
        again = tuple(output.model_dump() for output in outputs) if kept else None
        return Rollout(correct, None, reward, Written(digest, order.place.host, session, lengths, again), tokens)

    def _verdict(self, reward: float, extra: Mapping[str, Any]) -> bool | None:
        """Whether a rollout is right; None where nothing says so."""
        verdict = self.allocation.verdict
        if verdict is None:
            return reward == 1.0 if reward in (0.0, 1.0) else None
        if verdict == SCORE:
            return reward > 0
        if verdict not in extra:
            raise ValueError(
                f"verdict must be {SCORE!r} or one of what the reward function returns beside it, "
                f"{', '.join(extra) or 'nothing'}, got {verdict!r}; have the function return it"
            )
        return float(extra[verdict]) > 0

    async def _answer(self, seat: Seat, order: Order, output: AgentLoopOutput) -> str | None:
        answer = self._answers.read(self.tokenizer.decode(output.response_ids, skip_special_tokens=True))
        if order.place.name not in seat.classes:
            seat.classes[order.place.name] = self._answers.classes()
            for known in order.answers:
                await seat.classes[order.place.name].join(known)
        return None if answer is None else await seat.classes[order.place.name].join(answer)

    async def _published(self, publication: Publication) -> Report:
        rows = [row for group in publication.groups for row in group.rows]
        reused = [(row.written, row.session) for row in rows if row.session is not None]
        try:
            seat = await self._taken(publication.host)
        except TimeoutError:  # as for an order; what is written elsewhere is published all the same
            if reused:
                raise
        else:
            seat.closed = True
            while seat.writing:
                await asyncio.sleep(WRITING_SECONDS)
            for written, session in reused:
                await self._rewritten(seat, written, session)
            kept = {key for row in rows if row.session is None for key in row.written.keys}
            publication = replace(publication, cleared=tuple({*publication.cleared, *(seat.written - kept)}))
        await publish(publication, by_row=self._by_row)
        self._seats.pop(publication.host, None)
        return Report(publication.id)

    async def _rewritten(self, seat: Seat, written: Written, session: int) -> None:
        """Writes the rows of a rollout of an earlier step, as they were sampled and scored then."""
        outputs = [AgentLoopOutput(**output) for output in written.outputs]
        data = {key: value for key, value in seat.data.items() if key != "agent_name"}  # as verl's own rows
        await super()._agent_loop_postprocess(outputs, False, **data, session_id=session)

    async def _watched(self, coordinator: Any) -> None:
        """Gives up what is under way where ``coordinator`` dies for good, also when there is nothing to report."""
        try:
            await coordinator.lasts.remote()
        except RayError as error:
            self._abandoned([], error)

    async def _send(self, reports: list[Report]) -> None:
        await self._coordinator.report.remote(reports)

    def _abandoned(self, reports: list[Report], error: Exception) -> None:
        """The coordinator is gone for good: the trainer must not wait for rows that nobody will order."""
        if not isinstance(error, RayError):  # nor is it: what cannot be sent is said in its place
            told = [report for report in reports if report.error is None]
            if len(told) < len(reports):
                raise error
            logger.error("Reports cannot be sent", exc_info=error)
            for report in told:
                self._outbox.put(Report(report.id, error=repr(error)))
            return
        if self._seats:
            logger.error("The coordinator is gone; all prompts under way are given up", exc_info=error)
            self._giving_up = asyncio.create_task(self._give_up())

    async def _give_up(self) -> None:
        for host in list(self._seats):
            await tq.async_kv_put(key=host, partition_id=PARTITION, tag={"status": "failure"})
        self._seats.clear()
