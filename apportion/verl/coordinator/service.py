"""The coordinator: it plans the trainer's requests, assigns rollouts, commits groups, and teaches the allocator.

It does not know Ray: a ``WorkerPool`` carries tasks to workers. Each request of the trainer has its own budget, because
verl may refill prompts at any time. Prompts of a separable allocator are planned and committed one by one. Others wait
for each other, up to a deadline.

Every event is journaled, then handled to the end before the next one. State is rebuilt by replaying the journal.
Unanswered tasks are sent again.
"""

import asyncio
import gc
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any, Protocol

from apportion.engines.metrics import allocation_metrics
from apportion.predictors.saved import SavedValues
from apportion.types import Batch
from apportion.untrusted import shown
from apportion.verl.coordinator.commits import failed_commit, without_reused, written_keys
from apportion.verl.coordinator.journal import Event, EventJournal
from apportion.verl.coordinator.messages import (
    CommitTask,
    MetricsLogged,
    Reassigned,
    RolloutTask,
    RowsRequest,
    TaskResult,
    TrainerRequest,
    WorkerTask,
    address_of,
)
from apportion.verl.coordinator.planner import Planner, PromptSource
from apportion.verl.coordinator.rounds import AllocationRound, PendingTask
from apportion.verl.coordinator.selection import PromptSelection
from apportion.verl.coordinator.settings import VerlAllocation

logger = logging.getLogger(__name__)

GRACE_SECONDS = 60.0
"""Time after a task's deadline in which a silent worker may still answer. Then its rollouts count as failed."""

COUNTED = ("retried", "errors", "expired", "reassigned", "empty_rounds")
"""Counters of a round that ``metrics`` reports."""

LEARNED = ("name", "allocator", "baseline", "drawn", "selection")
"""Keys of what was learned, in a checkpoint and a snapshot."""

OWN = ("error", "_rounds", "_pending", "_ended", "_opened")
"""Attributes of a coordinator that a snapshot holds."""


class WorkerPool(Protocol):
    """Carries tasks to workers by name. Its methods do not wait, and do not call the coordinator before they return."""

    def send(self, worker: str, task: WorkerTask) -> None:
        """Have ``worker`` begin ``task``. Later its result arrives or the worker is lost.

        The worker "" stands for the pool itself, which carries out commits of rows that no worker holds.
        """

    def hand_over(self, worker: str, request: TrainerRequest, uids: Sequence[str]) -> bool:
        """Have ``worker`` take over the rows of ``uids``. Return whether the rows are still available."""

    def forget_rows(self, request: TrainerRequest) -> None:
        """Release the rows of ``request``, all of which are committed."""


class ExtraPrompts(PromptSource, Protocol):
    """A source of prompts beyond the trainer's. ``drawn`` is the number of rows drawn since the first."""

    drawn: int


def collect_rarely() -> None:
    """Make Python collect reference cycles less often, in a process that only runs a coordinator.

    A collection visits all objects, millions of them at 100,000 prompts, and blocks the process. It finds hardly any
    cycle.
    """
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


@dataclass
class Coordinator:
    """Plans, requests, commits and learns. With a ``selection`` it also chooses the trainer's prompts.

    Allocators that may draw prompts take them from the selection, or from ``extra_prompts`` without one.
    """

    allocation: VerlAllocation
    pool: WorkerPool
    journal: EventJournal
    extra_prompts: ExtraPrompts | None = None
    selection: PromptSelection | None = None
    error: str | None = None
    _rounds: dict[str, AllocationRound] = field(default_factory=dict)
    _pending: dict[str, PendingTask] = field(default_factory=dict)
    _ended: list[AllocationRound] = field(default_factory=list)
    _opened: str = ""
    _received: deque[TaskResult] = field(default_factory=deque)
    _timers: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    _live: bool = True

    def __post_init__(self) -> None:
        source = self.extra_prompts if self.selection is None else self.selection
        self._planner = Planner(self.allocation, source, self._submit, self.selection)

    @property
    def busy(self) -> bool:
        """Whether a round is in progress."""
        return bool(self._rounds)

    def open(self, request: TrainerRequest) -> None:
        """Begin a round. Ignore a repeated call, which Ray makes if the coordinator died before it answered.

        Raises RuntimeError if an earlier round ended in an error, ValueError for a size that cannot be planned.
        """
        if self.error is not None:
            raise RuntimeError(self.error)
        self.allocation.allocator.size(len(request.prompts))
        if self.selection is not None:
            self.selection.check_prompts(request.prompts)
        if request.prompts and request.id != self._opened:
            self._record(request)

    def choose(self, request: RowsRequest) -> list[int]:
        """Return the rows of the trainer's next batch. A repeated request gets the same rows.

        Raises RuntimeError if a round or a choice ended in an error, ValueError for a request that does not fit.
        """
        if self.selection is None:
            raise ValueError("rows are only chosen with a selection, got none; set allocation.selection")
        if self.error is None:
            self.selection.check(request)
            if request.number == self.selection.choices:
                self._record(request)
        if self.error is not None:
            raise RuntimeError(self.error)
        return self.selection.latest

    def receive(self, results: Sequence[TaskResult]) -> None:
        """Take results of any tasks, in any order. Ignore those of tasks that are not pending."""
        awaited = tuple(result for result in results if result.id in self._pending)
        if awaited:
            self._record(awaited)

    def lose(self, worker: str, others: Sequence[str]) -> None:
        """Divide what the dead ``worker`` held among the living ``others``, in turn.

        Its unfinished rollouts start again there. They have failed if the rows are gone or no worker lives.
        """
        turns, found = cycle(others or [""]), dict[str, list[str]]()
        for round in self._rounds.values():
            given: dict[str, list[str]] = {}
            for uid, holder in round.worker.items():
                if holder == worker:
                    given.setdefault(next(turns), []).append(uid)
            for other, uids in given.items():
                available = other != "" and self.pool.hand_over(other, round.request, uids)
                found.setdefault(other if available else "", []).extend(uids)
        for holder, uids in found.items():
            self._record(Reassigned(tuple(uids), holder))

    def metrics(self) -> dict[str, float]:
        """Return how the rounds that ended since the last call spent their rollouts; {} if none ended.

        The metrics of a selection have their prefix; the others are under ``allocation/`` in the log.

        Raises RuntimeError if a round ended in an error.
        """
        if self.error is not None:
            raise RuntimeError(self.error)
        ended = self._ended
        if not ended:
            return {}
        self._record(MetricsLogged())
        batch = Batch.concatenate([planned.batch for round in ended for planned in round.batches])
        found = allocation_metrics(batch, [group for round in ended for group in round.groups])
        own = {name: [round.metrics[name] for round in ended if name in round.metrics] for name in ended[-1].metrics}
        found |= {name: sum(values) / len(values) for name, values in own.items()}
        counts = sum((round.counts for round in ended), Counter[str]())
        found |= {"requests": float(len(ended))} | {name: float(counts[name]) for name in COUNTED}
        return found if self.selection is None else found | self.selection.metrics()

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: the allocator's, and the committed batches of unfinished rounds.

        The journal is replaced by a snapshot.
        """
        self.journal.restart(self._snapshot())
        committed = [round.committed for round in self._rounds.values() if not round.closed]
        return self._learned() | {"unfinished": [_without_data(batches) for batches in committed if batches]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the ``state`` of a run with the same allocator. Raises ValueError for anything else."""
        saved = SavedValues(state, "the coordinator", [*LEARNED, "unfinished"])
        unfinished = saved.values["unfinished"]
        if not isinstance(unfinished, list) or not all(isinstance(batch, Batch) for batch in unfinished):
            raise saved.refusal("unfinished", "a list of batches")
        self._load_learned({key: value for key, value in state.items() if key != "unfinished"})
        for batch in unfinished:
            self._planner.learn(batch)
        self.journal.restart(self._snapshot())

    def replay(self) -> None:
        """Rebuild the state from the journal, after a restart."""
        snapshot, events = self.journal.resume()
        if snapshot is not None:
            saved = SavedValues(snapshot, "the coordinator", ["learned", "own"])
            own = SavedValues(saved.values["own"], "the coordinator", OWN)
            self._load_learned(saved.state("learned"))
            for name in OWN:
                setattr(self, name, own.values[name])
        self._live = False
        for event in events:
            self._handle(event)
        self._live = True
        for pending in self._pending.values():
            self._send(pending)

    def _record(self, event: Event) -> None:
        """Journal ``event``, then handle it."""
        self.journal.write(event)
        self._handle(event)
        if self.journal.large:
            self.journal.restart(self._snapshot())

    def _handle(self, event: Event) -> None:
        if isinstance(event, TrainerRequest):
            uids = (address_of(prompt).uid for prompt in event.prompts)
            round = AllocationRound(event, dict(zip(uids, event.workers, strict=True)))
            self._opened, self._rounds[event.id] = event.id, round
            self._plan(round, self._planner.start, round)
        elif isinstance(event, RowsRequest):
            self._choose(event)
        elif isinstance(event, Reassigned):
            self._reassign(event)
        elif isinstance(event, MetricsLogged):
            self._ended = []
        else:
            self._received.extend(event)
        while self._received:
            self._take(self._received.popleft())

    def _choose(self, request: RowsRequest) -> None:
        """Choose rows. Keep the error if that raises, which is a fault of the selector."""
        assert self.selection is not None
        try:
            self.selection.choose(request)
        except Exception as error:
            self.error = f"the choice of prompts failed at choice {request.number}: {error}"
            logger.exception(self.error)

    def _plan(self, round: AllocationRound, act: Callable[..., None], *args: Any) -> None:
        """Have the planner ``act`` on a round. End the round if that raises."""
        try:
            act(*args)
        except Exception as error:  # noqa: BLE001 - raised in the trainer's process, which waits for the rows
            self._fail(round, error)
        else:
            if round.closed:
                self._ended.append(round)

    def _submit(self, pending: PendingTask) -> None:
        self._pending[pending.task.id] = pending
        self._send(pending)

    def _send(self, pending: PendingTask) -> None:
        """Send a task to the worker that holds its row. Without such a worker its rollouts have failed."""
        task, worker = pending.task, pending.round.worker[pending.task.uid]
        if isinstance(task, CommitTask):
            if self._live:
                self.pool.send(worker, task if worker else without_reused(task))
        elif not worker:
            self._received.append(TaskResult(task.id, failures=(f"no worker holds {task.uid}",), expired=True))
        elif self._live:
            self.pool.send(worker, task)
            self._start_timer(task)

    def _start_timer(self, task: RolloutTask) -> None:
        """Let ``task`` fail if no result arrives in time."""
        self._stop_timer(task.id)
        if task.seconds is not None:
            late = TaskResult(task.id, failures=(f"no result of {task.id}",), expired=True)
            after = task.seconds + GRACE_SECONDS
            self._timers[task.id] = asyncio.get_running_loop().call_later(after, self.receive, [late])

    def _stop_timer(self, id: str) -> None:
        if timer := self._timers.pop(id, None):
            timer.cancel()

    def _take(self, result: TaskResult) -> None:
        """Handle the first result of a task, and ignore later ones."""
        pending = self._pending.pop(result.id, None)
        if pending is None:
            return
        self._stop_timer(result.id)
        if isinstance(pending.task, CommitTask):
            self._end_commit(pending.round, pending.task.uid, result)
        else:
            self._plan(pending.round, self._planner.receive, pending, result)

    def _end_commit(self, round: AllocationRound, uid: str, result: TaskResult) -> None:
        """Remove a committed ``uid`` from its round, and the round after its last uid."""
        if result.error is not None and not round.failed:
            self._fail(round, RuntimeError(result.error))
            return
        del round.worker[uid]
        if round.closed and not round.worker:
            del self._rounds[round.request.id]
            self.pool.forget_rows(round.request)

    def _reassign(self, event: Reassigned) -> None:
        uids = set(event.uids)
        for round in self._rounds.values():
            own = uids & round.worker.keys()
            round.worker.update(dict.fromkeys(own, event.worker))
            round.counts["reassigned"] += len(own) if event.worker else 0
        for pending in [pending for pending in self._pending.values() if pending.task.uid in uids]:
            self._send(pending)

    def _fail(self, round: AllocationRound, error: Exception) -> None:
        """Log the error, and end the trainer's wait for every uid of the round that is not committed."""
        message = f"allocation failed at step {round.request.step}: {error}"
        logger.error(message, exc_info=error)
        self.error = self.error or message
        round.closed = round.failed = True
        for pending in [pending for pending in self._pending.values() if pending.round is round]:
            if isinstance(pending.task, RolloutTask):
                self._stop_timer(pending.task.id)
                del self._pending[pending.task.id]
        committing = {pending.task.uid for pending in self._pending.values() if pending.round is round}
        written: dict[str, set[str]] = {}
        for planned in round.batches:
            written |= written_keys(planned.batch, planned.uids, round.sessions)
        for uid in [uid for uid in round.worker if uid not in committing]:
            self._submit(PendingTask(round, failed_commit(uid, sorted(written.get(uid, ())))))

    def _learned(self) -> dict[str, Any]:
        allocator, baseline = self.allocation.allocator, self.allocation.baseline
        return {
            "name": allocator.name,
            "allocator": allocator.state_dict(),
            "baseline": None if baseline is None else baseline.state_dict(),
            "drawn": 0 if self.extra_prompts is None else self.extra_prompts.drawn,
            "selection": None if self.selection is None else self.selection.state_dict(),
        }

    def _load_learned(self, state: Mapping[str, Any]) -> None:
        saved = SavedValues(state, "the coordinator", LEARNED)
        allocator, baseline = self.allocation.allocator, self.allocation.baseline
        if state["name"] != allocator.name:
            raise ValueError(
                f"the checkpoint must be of the same allocator, {allocator.name}, got one of {shown(state['name'])}; "
                "resume with that allocator, or start a new run from the checkpoint's weights"
            )
        if (state["baseline"] is None) != (baseline is None):
            raise saved.refusal("baseline", "None" if baseline is None else f"that of {baseline.name}")
        if (state["selection"] is None) != (self.selection is None):
            has, wanted = ("none", "one") if state["selection"] is None else ("one", "none")
            raise ValueError(
                f"the checkpoint must have {wanted} of allocation.selection, as this run, got {has}; resume with the "
                "same selection, or start a new run from the checkpoint's weights"
            )
        drawn = saved.count("drawn")
        allocator.load_state_dict(saved.state("allocator"))
        if baseline is not None:
            baseline.load_state_dict(saved.state("baseline"))
        if self.selection is not None:
            self.selection.load_state_dict(saved.state("selection"))
        if self.extra_prompts is not None:
            self.extra_prompts.drawn = drawn

    def _snapshot(self) -> dict[str, Any]:
        """Return the whole state, for the journal."""
        return {"learned": self._learned(), "own": {name: getattr(self, name) for name in OWN}}


def _without_data(batches: Sequence[Batch]) -> Batch:
    """Return ``batches`` as one that an allocator can learn from, without what engines attached to the prompts."""
    batch = Batch.concatenate(batches)
    return replace(batch, prompts=tuple(replace(prompt, data=None) for prompt in batch.prompts))
