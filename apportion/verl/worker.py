"""The agent-loop worker: it samples rollouts for the coordinator's tasks, then commits the groups."""

import asyncio
import hashlib
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import ray
import torch
import transfer_queue as tq
from ray.exceptions import RayTaskError
from verl.experimental.agent_loop import AgentLoopOutput
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

from apportion.answers.equivalence import AnswerClasses
from apportion.answers.reader import AnswerReader
from apportion.predictors.score_norms import sampled_score_norm
from apportion.scheduler.outcomes import rollout_of
from apportion.types import Needs, Rollout
from apportion.untrusted import shown
from apportion.verl.coordinator.messages import (
    CommitTask,
    RolloutTask,
    TaskResult,
    WorkerTask,
    WrittenRollout,
    row_keys,
)
from apportion.verl.coordinator.settings import SCORE
from apportion.verl.packed_outputs import pack_output, unpack_output
from apportion.verl.reports import GROUP, Outbox
from apportion.verl.rows import PARTITION, commit_rows
from apportion.verl.server_calls import ABORT_SECONDS, ServerCalls
from apportion.verl.settings import allocation_of, by_row, norm_reduction

T = TypeVar("T")

logger = logging.getLogger(__name__)

VALIDATION = "val"
"""TransferQueue's partition of validations."""

ENDING_SECONDS = 2 * ABORT_SECONDS + 4.0
"""How long an abandoned session may take to end, with its requests at the servers."""

WRITING_SECONDS = 0.05
"""Polling interval while rows are being written."""

TRIES, AGAIN_SECONDS = 3, 1.0
"""How often a worker's call of TransferQueue is tried, and the pause in seconds between two tries."""

DESCRIBED = 500
"""Longest description of a failed rollout, in characters."""

UNFINISHED = ("pending", "running")
"""The statuses of a prompt that the trainer waits for."""

COUNTS = ("__rollout_n__", "__do_sample__")
"""Columns by which a data set tells verl how to sample a row. verl removes them before it writes a row."""


@dataclass
class HeldRow:
    """A row that the trainer requested: its ``data``, and how to ``run`` verl's agent loop in a session on it.

    ``running`` are the sessions by their asyncio tasks. ``writing`` are those that are writing their rows, which no
    deadline interrupts. ``written`` are the keys of all rows, also of sessions past their deadline. Once the row is
    ``closed`` no session starts to write.
    """

    data: dict[str, Any]
    run: Callable[[int, Mapping[str, Any]], Awaitable[list[AgentLoopOutput] | None]]
    classes: dict[str, AnswerClasses] = field(default_factory=dict)
    running: dict[asyncio.Task[Any], int] = field(default_factory=dict)
    writing: set[int] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    closed: bool = False

    def give_up(self, sessions: Iterable[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
        """Cancel the ``sessions`` that are not writing their rows yet, and return them."""
        given_up = {each for each in sessions if self.running.get(each, -1) not in self.writing}
        for each in given_up:
            each.cancel()
        return given_up


class AllocatedWorker(AgentLoopWorkerTQ.__ray_actor_class__):  # type: ignore[misc]
    """Runs the sessions that the coordinator requests. Validation is verl's own."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.allocation, self._by_row = allocation_of(config), by_row(config)
        self._calls = ServerCalls(self.llm_client)
        self._norms = norm_reduction(config, self.allocation)
        self._answers = AnswerReader(self.allocation.extract, self.allocation.equivalence)
        self._rows: dict[str, asyncio.Future[HeldRow]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._done: set[str] = set()
        self._outbox = Outbox()

    @ray.method(concurrency_group=GROUP)  # type: ignore[untyped-decorator]
    def reports(self) -> list[bytes]:
        """Return what was finished since the last call; see ``Outbox``.

        A validated prompt is a task with its uid as name.
        """
        return self._outbox.take()

    async def carry_out(self, tasks: Sequence[WorkerTask]) -> None:
        """Begin ``tasks``. Their results are reported later."""
        for task in tasks:
            running = asyncio.create_task(self._carry_out(task))
            self._running.add(running)
            running.add_done_callback(self._running.discard)

    async def take_over(self, chunks: Sequence[Any], uids: Sequence[str]) -> None:
        """Take the rows of ``uids`` from ``chunks``, references to rows that a dead worker held.

        It may have finished some of them and died before it said so. The trainer may have trained on these already, so
        they are not written again.
        """
        wanted = set(uids)
        tags = await insisted(tq.async_kv_list)
        unfinished = {
            uid for found in tags.values() for uid in wanted & found.keys() if found[uid].get("status") in UNFINISHED
        }
        self._done |= wanted - unfinished
        for chunk in chunks:
            batch = await chunk
            found = [i for i, uid in enumerate(batch["uid"]) if uid in wanted]
            if found:
                await self.generate_sequences(batch[torch.tensor(found)])

    async def _run_prompt(
        self, prompt: dict[str, Any], sampling_params: dict[str, Any], trajectory: dict[str, Any], trace: bool = False
    ) -> None:
        """Keep the row until tasks request its rollouts, instead of running verl's fixed number of sessions."""
        uid = prompt["uid"]
        if trajectory["validate"]:
            if uid not in self._done:
                await self._validate(uid, super()._run_prompt(prompt, sampling_params, trajectory, trace))
            self._done.discard(uid)
            self._outbox.put(TaskResult(uid))
            return

        def run(session: int, data: Mapping[str, Any]) -> Awaitable[list[AgentLoopOutput] | None]:
            own = dict(sampling_params)
            return self._run_agent_loop(own, trajectory=trajectory, trace=trace, session_id=session, **data)

        row = HeldRow({key: value for key, value in prompt.items() if key not in COUNTS}, run)
        if uid not in self._done:
            # before tasks find the row, so that this status never overwrites that of a commit
            await insisted(lambda: tq.async_kv_put(key=uid, partition_id=PARTITION, tag={"status": "running"}))
        if uid in self._rows and self._rows[uid].done():
            del self._rows[uid]
        self._future_row(uid).set_result(row)

    async def _validate(self, uid: str, validation: Awaitable[None]) -> None:
        """Wait for verl's ``validation`` of a prompt. It has failed if it takes longer than the deadline."""
        seconds = self.allocation.deadline_seconds
        try:
            async with asyncio.timeout(None if math.isinf(seconds) else seconds):
                await validation
        except TimeoutError:
            logger.error("The validation of %s took more than %g s and counts as failed", uid, seconds)
            await tq.async_kv_put(key=uid, partition_id=VALIDATION, tag={"status": "failure"})

    def _future_row(self, uid: str) -> asyncio.Future[HeldRow]:
        if uid not in self._rows:
            self._rows[uid] = asyncio.get_running_loop().create_future()
        return self._rows[uid]

    async def _row(self, uid: str) -> HeldRow:
        """Return the row of ``uid`` once it is here: it may first have to be taken over from a dead worker."""
        async with asyncio.timeout(self.allocation.limits.row):
            return await asyncio.shield(self._future_row(uid))

    async def _carry_out(self, task: WorkerTask) -> None:
        try:
            if isinstance(task, CommitTask):
                result = await insisted(lambda: self._commit(task))
            else:
                result = await self._sample(task)
        except Exception as error:
            logger.exception("%s of %s failed", type(task).__name__, task.uid)
            result = TaskResult(task.id, error=repr(error))
        try:
            self._outbox.put(result)
        except Exception as error:  # an output holds something that cannot be sent
            logger.exception("The result of %s cannot be sent", task.uid)
            self._outbox.put(TaskResult(task.id, error=f"a rollout cannot be sent: {error!r}"))

    async def _sample(self, task: RolloutTask) -> TaskResult:
        """Return the rollouts that arrive before the deadline, in the order of their sessions."""
        try:
            row = await self._row(task.uid)
        except TimeoutError:  # the worker that held it died unnoticed
            return TaskResult(task.id, failures=(f"the row of {task.uid} is not here",), expired=True)
        sessions = [asyncio.create_task(self._session(row, task, session)) for session in task.sessions]
        for session, each in zip(task.sessions, sessions, strict=True):
            row.running[each] = session
            each.add_done_callback(row.running.pop)
        late = (await asyncio.wait(sessions, timeout=task.seconds))[1]
        given_up = row.give_up(late)
        unended = (await asyncio.wait(given_up, timeout=ENDING_SECONDS))[1] if given_up else set()
        results = await asyncio.gather(*(each for each in sessions if each not in unended), return_exceptions=True)
        for found in results:
            if isinstance(found, Exception):
                logger.error("A rollout of %s failed", task.uid, exc_info=found)
        failures = [_described(found, task.seconds) for found in results if isinstance(found, BaseException)]
        if unended:  # such a session can no longer generate, and the commit leaves out what it still writes
            logger.error("%d of the sessions of %s did not end when cancelled", len(unended), task.uid)
            failures += ["a session did not end when it was cancelled"] * len(unended)
        rollouts = tuple(found for found in results if isinstance(found, Rollout))
        return TaskResult(task.id, rollouts, tuple(failures), expired=bool(late))

    async def _session(self, row: HeldRow, task: RolloutTask, session: int) -> Rollout:
        """Return the rollout of a session. If the rollout cannot be read, the commit clears its rows."""
        async with self._calls.session():
            outputs = await row.run(session, row.data | dict(task.address.row or {}))
        if not outputs:
            raise RuntimeError("an agent loop must return an output, got none")
        return await self._rollout(row, task, session, outputs)

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **kwargs: Any) -> list[AgentLoopOutput] | None:
        """Have verl score the outputs and write their rows, then return them to the task that requested them."""
        outputs: list[AgentLoopOutput] = output if isinstance(output, list) else [output]
        if validate:
            await super()._agent_loop_postprocess(output, validate, **kwargs)
            return None
        if self.allocation.label_free and outputs:  # votes give the reward, so that no reward function is called
            outputs[-1].reward_score = 0.0
            outputs[-1].extra_fields.setdefault("reward_extra_info", {})
        if outputs:
            await self._compute_score(outputs, kwargs=kwargs)
            self._judged(outputs[-1])  # raises before a row is written, so that this rollout fails alone
        uid, session = kwargs["uid"], kwargs["session_id"]
        row = self._rows[uid].result() if uid in self._rows else None
        if row is None or row.closed:  # a row written now would belong to no group
            raise RuntimeError(f"session {session} of {uid} ended after the commit of {uid}; its rollout is left out")
        row.writing.add(session)
        row.written.update(row_keys(uid, session, len(outputs)))
        try:
            await super()._agent_loop_postprocess(outputs, validate, **kwargs)
        finally:
            row.writing.discard(session)
        return outputs

    async def _rollout(self, row: HeldRow, task: RolloutTask, session: int, outputs: list[AgentLoopOutput]) -> Rollout:
        last = outputs[-1]
        tokens = sum(sum(output.response_mask) for output in outputs)
        ids = [np.asarray(output.response_ids, np.int64) for output in outputs]
        digest = hashlib.blake2b(np.concatenate(ids).tobytes(), digest_size=16).digest()
        written = WrittenRollout(digest, task.uid, session, tuple(len(each) for each in ids))
        if self.allocation.label_free:
            rollout = Rollout(answer=await self._read_answer(row, task, last))
        else:
            rollout, needs = self._judged(last), self.allocation.allocator.needs
            if needs.reused_rollouts and (rollout.correct or needs.reused_incorrect):
                written = replace(written, outputs=tuple(map(pack_output, outputs)))
        return replace(rollout, completion=written, tokens=tokens, score_norm=self._score_norm(outputs))

    def _score_norm(self, outputs: list[AgentLoopOutput]) -> float | None:
        """Return the score norm of the policy's own tokens in all outputs of a rollout; None if nothing reads it."""
        if self._norms is None:
            return None
        logprobs: list[float] = []
        for output in outputs:
            if output.response_logprobs is None:
                raise ValueError(
                    "an agent loop must return response_logprobs, from which score norms are computed, got None; set "
                    "actor_rollout_ref.rollout.calculate_log_probs=True, and have your own agent loop pass them on"
                )
            pairs = zip(output.response_logprobs, output.response_mask, strict=True)
            logprobs += [logprob for logprob, own in pairs if own]
        return sampled_score_norm(logprobs, self._norms)

    def _judged(self, output: AgentLoopOutput) -> Rollout:
        """Return a rollout with its reward and verdict. Raises ValueError if either is no finite number."""
        key, reward = self.allocation.verdict, output.reward_score
        extra: Mapping[str | None, Any] = output.extra_fields.get("reward_extra_info") or {}
        verdict = reward if key == SCORE else extra.get(key)
        if verdict is None and key not in (None, SCORE):
            raise ValueError(
                f"allocation.verdict must be {SCORE!r} or a key that the reward function returns beside the score, "
                f"{', '.join(map(str, extra)) or 'none'}, got {key!r}; have the function return it"
            )
        rollout = rollout_of(reward, Needs(), verdict=verdict)  # the coordinator refuses one without a verdict
        if rollout is None:
            beside = "" if key in (None, SCORE) else f" and {shown(verdict)} as {key}"
            raise ValueError(f"the reward function must return finite numbers, got {shown(reward)}{beside}")
        return rollout

    async def _read_answer(self, row: HeldRow, task: RolloutTask, output: AgentLoopOutput) -> str | None:
        answer = self._answers.read(self.tokenizer.decode(output.response_ids, skip_special_tokens=True))
        group = task.address.group
        if group not in row.classes:
            row.classes[group] = self._answers.new_classes()
            for known in task.answers:
                await row.classes[group].join(known)
        return None if answer is None else await row.classes[group].join(answer)

    async def _commit(self, commit: CommitTask) -> TaskResult:
        reused = [(row.written, row.session) for row in commit.rows if row.session is not None]
        try:
            row = await self._row(commit.uid)
        except TimeoutError:  # the worker that held it died unnoticed; rows that other workers wrote can be committed
            if reused:
                raise
            found = await _rows_of(commit.uid)
        else:
            row.closed = True
            row.give_up(row.running)
            if commit.uid in self._done:
                self._done.discard(commit.uid)
                self._rows.pop(commit.uid)
                return TaskResult(commit.id)
            while row.writing:
                await asyncio.sleep(WRITING_SECONDS)
            for written, session in reused:
                await self._write_again(row, written, session)
            found = await _rows_of(commit.uid) if commit.swept else row.written
        left_out = found - commit.keys
        rewarded = self.allocation.label_free or bool(self.allocation.outcome_gate)
        await commit_rows(commit, left_out, by_row=self._by_row, rewarded=rewarded)
        self._rows.pop(commit.uid, None)
        return TaskResult(commit.id)

    async def _write_again(self, row: HeldRow, written: WrittenRollout, session: int) -> None:
        """Write the rows of a rollout of an earlier step, as it was sampled and scored then."""
        outputs = [unpack_output(output) for output in written.outputs or ()]
        data = {key: value for key, value in row.data.items() if key != "agent_name"}  # as in verl's own rows
        await super()._agent_loop_postprocess(outputs, False, **data, session_id=session)


async def _rows_of(uid: str) -> set[str]:
    """Return the keys of all rows of a prompt, also those that a dead worker wrote."""
    return {key for key in (await tq.async_kv_list(PARTITION)).get(PARTITION, {}) if key.startswith(f"{uid}_")}


async def insisted(work: Callable[[], Awaitable[T]]) -> T:
    """Return the result of ``work``, which must be repeatable. After an error it is tried again, as over a network."""
    for _ in range(TRIES - 1):
        try:
            return await work()
        except Exception:
            logger.exception("A call of TransferQueue failed; it is tried again")
            await asyncio.sleep(AGAIN_SECONDS)
    return await work()


def _described(error: BaseException, seconds: float | None) -> str:
    """Return the reason for a failed rollout in one line.

    For an error of another process it is the cause, without traceback.
    """
    if isinstance(error, asyncio.CancelledError):
        return f"no end within {seconds:g} s" if seconds else "its cancellation"
    cause = error.cause if isinstance(error, RayTaskError) else error
    return f"{type(cause).__name__}: {' '.join(str(cause).split())[:DESCRIBED]}"
