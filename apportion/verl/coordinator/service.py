"""The coordinator: it plans the trainer's requests, assigns rollouts, commits groups, and teaches the allocator.

It does not know Ray: a ``WorkerPool`` carries tasks to workers. Each request of the trainer has its own budget, because
verl may refill prompts at any time. Prompts of a separable allocator are planned and committed one by one. Others wait
for each other, up to a deadline.

It lives in the trainer's process and dies with it. So it keeps no record of its own: a resumed run continues from
verl's checkpoint. An error of the allocator ends the run.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any, Protocol

from apportion.engines.metrics import allocation_metrics
from apportion.predictors.saved import SavedValues
from apportion.runs.declared_types import fits
from apportion.scheduler import OfferedScheduler
from apportion.types import Batch
from apportion.verl.coordinator.messages import (
    CommitTask,
    RolloutTask,
    TaskResult,
    TrainerRequest,
    TrainerUpdate,
    ValidationTask,
    WorkerTask,
    uids_of,
)
from apportion.verl.coordinator.planner import ExtraPrompts, Planner
from apportion.verl.coordinator.rounds import AllocationRound, PendingTask
from apportion.verl.coordinator.selection import PromptSelection
from apportion.verl.coordinator.settings import VerlAllocation
from apportion.verl.coordinator.streamed import StreamedPlanner

logger = logging.getLogger(__name__)

GRACE_SECONDS = 60.0
"""Time after a task's deadline in which its worker may still answer. Then its rollouts count as failed."""

FAILED_IN_A_ROW = 256
"""So many rollouts that fail one after the other end the run, because verl would replace their prompts forever."""

COUNTED = ("retried", "errors", "expired", "reassigned", "empty_rounds")
"""Counters of a round that ``metrics`` reports."""

SAVED = ("name", "allocator", "baseline", "selection", "drawn", "unfinished", "learned_uids", "given", "stream")
"""Keys of the state, in a checkpoint."""


class WorkerPool(Protocol):
    """Carries tasks to workers by name. Its methods do not wait, and do not call the coordinator before they return."""

    def send(self, worker: str, task: WorkerTask) -> None:
        """Have ``worker`` begin ``task``. Later its result arrives or the worker is lost."""

    def hand_over(self, worker: str, request: TrainerRequest, uids: Sequence[str]) -> None:
        """Have ``worker`` take over the rows of ``uids``."""

    def forget_rows(self, request: TrainerRequest) -> None:
        """Release the rows of ``request``, all of which are committed."""


@dataclass
class Coordinator:
    """Plans, requests, commits and learns. With a ``selection`` it also chooses the trainer's prompts.

    Allocators that may draw prompts take them from the selection, or from ``extra_prompts`` without one. With
    ``refills`` verl replaces prompts without a rollout. Otherwise a round without any rollout ends the run. With a
    ``stream`` there are no rounds: it decides who gets a slot, and the trainer takes its updates.

    ``error`` is set once and for all if the run cannot continue. The trainer raises it. ``pool`` must be set before a
    round is opened.
    """

    allocation: VerlAllocation
    extra_prompts: ExtraPrompts | None = None
    selection: PromptSelection | None = None
    refills: bool = False
    stream: OfferedScheduler | None = None
    error: str | None = None
    pool: WorkerPool = field(init=False, repr=False)
    _rounds: dict[str, AllocationRound] = field(default_factory=dict)
    _pending: dict[str, PendingTask] = field(default_factory=dict)
    _ended: list[AllocationRound] = field(default_factory=list)
    _failed_in_a_row: int = 0
    _acknowledged: set[str] = field(default_factory=set)
    _resumed: bool = False

    def __post_init__(self) -> None:
        source = self.extra_prompts if self.selection is None else self.selection
        end = self._ended.append
        self._planner = Planner(self.allocation, source, self._submit, end)
        self._streamed: StreamedPlanner | None = None
        if self.stream is not None:
            self._streamed = StreamedPlanner(self.allocation, self.stream, self._submit, end, self._planner.given)

    @property
    def waits(self) -> dict[str, int]:
        """The number of unfinished tasks by the worker that has them; "" for those that wait for a worker."""
        return dict(Counter(pending.round.worker[pending.task.uid] for pending in self._pending.values()))

    def fail(self, message: str) -> None:
        """End the run with ``message``, unless an earlier error does."""
        if self.error is None:
            self.error = message

    def check(self) -> None:
        """Raise RuntimeError if the run cannot continue."""
        if self.error is not None:
            raise RuntimeError(self.error)

    def open(self, request: TrainerRequest) -> None:
        """Begin a round.

        Raises RuntimeError if the run cannot continue, ValueError for a size that cannot be planned.
        """
        self.check()
        self.allocation.allocator.size(len(request.prompts))
        if self.selection is not None:
            self.selection.check_prompts(request.prompts)
        if request.prompts:
            self._keep_reissued(request)
            round = self._begin(request)
            self._plan(round, (self._streamed or self._planner).start, round)

    def validate(self, request: TrainerRequest) -> None:
        """Hold the rows of a validation, which verl does itself, until their workers say that they are done."""
        round = self._begin(request)
        self._pending.update({uid: PendingTask(round, ValidationTask(uid)) for uid in round.worker})

    def _begin(self, request: TrainerRequest) -> AllocationRound:
        holders = dict(zip(uids_of(request.prompts), request.workers, strict=True))
        round = self._rounds[request.id] = AllocationRound(request, holders)
        return round

    def next_update(self, done: bool, queue: Collection[str] | None = None) -> TrainerUpdate:
        """Return what the trainer takes from the stream; ``done`` says that the update before has trained.

        ``queue`` are the uids that are finished in the trainer's queue, when it first asks. Raises RuntimeError if the
        run cannot continue.
        """
        self.check()
        assert self._streamed is not None
        try:
            if queue is not None:
                self._streamed.reconcile(queue)
            if done:
                self._streamed.trained()
            return self._streamed.update()
        except Exception as error:
            self.fail(f"allocation failed at step {self._streamed.step}: {error}")
            raise RuntimeError(self.error) from error

    def choose(self, number: int, rows: int) -> list[int]:
        """Return the rows of the trainer's batch ``number``, the next one, or again the latest, of so many ``rows``.

        Raises RuntimeError if the run cannot continue, ValueError for a request that does not fit.
        """
        if self.selection is None:
            raise ValueError("rows are only chosen with a selection, got none; set allocation.selection")
        self.check()
        self.selection.check(number, rows)
        try:
            return self.selection.choose(number)
        except Exception as error:
            self.fail(f"the choice of prompts failed at choice {number}: {error}")
            raise RuntimeError(self.error) from error

    def receive(self, results: Sequence[TaskResult]) -> None:
        """Take results of any tasks, in any order. Ignore those of tasks that are not pending."""
        for result in results:
            pending = self._pending.pop(result.id, None)
            if pending is None or self.error is not None:
                continue
            if isinstance(pending.task, CommitTask):
                self._end_commit(pending.round, pending.task.uid, result)
            elif isinstance(pending.task, ValidationTask):
                self._release(pending.round, pending.task.uid)
            else:
                self._count_failures(pending.task, result)
                self._plan(pending.round, (self._streamed or self._planner).receive, pending, result)

    def lose(self, worker: str, others: Sequence[str]) -> None:
        """Divide what the dead ``worker`` held among the living ``others``, in turn.

        Its unfinished rollouts start again there. If no worker lives they wait: ``lose("", [name])`` gives them to a
        worker that was restarted.
        """
        turns, moved = cycle(others or [""]), set[str]()
        for round in self._rounds.values():
            given: dict[str, list[str]] = {}
            for uid, holder in round.worker.items():
                if holder == worker:
                    given.setdefault(next(turns), []).append(uid)
            for other, uids in given.items():
                if other:
                    self.pool.hand_over(other, round.request, uids)
                    round.counts["reassigned"] += len(uids)
                moved.update(uids)
                round.reassigned.update(uids)
                round.worker.update(dict.fromkeys(uids, other))
        for pending in self._pending.values():
            if pending.task.uid in moved:
                self._send(pending)

    def expire(self, now: float) -> None:
        """Give up tasks whose time was over at ``now``, by ``time.monotonic``. The pool calls it twice a second."""
        for task in [pending.task for pending in self._pending.values() if pending.end <= now]:
            if isinstance(task, CommitTask):
                limit = self.allocation.limits.commit  # TransferQueue is gone if a commit takes longer
                late = TaskResult(task.id, error=f"it must end within {limit:g} s, got no answer of its worker")
            else:
                late = TaskResult(task.id, failures=(f"no result of {task.id}",), expired=True)
            self.receive([late])

    def metrics(self) -> dict[str, float]:
        """Return how the rounds that ended since the last call spent their rollouts; {} if none ended.

        The metrics of a selection have their prefix; the others are under ``allocation/`` in the log.

        Raises RuntimeError if the run cannot continue.
        """
        self.check()
        for uid in self._acknowledged:
            self._planner.given.pop(uid, None)
        self._acknowledged.clear()
        self._end_update()
        ended = self._ended.copy()
        self._ended.clear()
        streamed = {} if self._streamed is None else self._streamed.metrics()
        if not ended:
            return streamed
        batch = Batch.concatenate([round.batch for round in ended])
        groups = [group for round in ended for group in round.groups]
        estimator = None if self.allocation.baseline is None else "reinforce"  # or spo, which compares as widely
        found = allocation_metrics(batch, groups, estimator)
        own = {name: [round.metrics[name] for round in ended if name in round.metrics] for name in ended[-1].metrics}
        found |= {name: sum(values) / len(values) for name, values in own.items()}
        counts = sum((round.counts for round in ended), Counter[str]())
        found |= {"requests": float(len(ended))} | {name: float(counts[name]) for name in COUNTED}
        errors = sum((round.errors for round in ended), Counter[str]())
        found["errors_of_one"] = float(max(errors.values(), default=0))
        found["barrier_seconds"] = sum(round.waited for round in ended) / len(batch.prompts)
        if errors.total():
            by_worker = ", ".join(f"{count} on {name or 'no worker'}" for name, count in errors.most_common() if count)
            last = [round.latest_failure for round in ended if round.counts["errors"]][-1]
            logger.warning(
                "Attempts failed until step %d: %s; the latest with %s", ended[-1].request.step, by_worker, last
            )
        return found | streamed | ({} if self.selection is None else self.selection.metrics())

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint.

        It holds what the allocator has learned, the prompts of unfinished rounds whose commits were sent, and the uids
        of all learned prompts that verl may count as in flight. An asynchronous trainer saves its queue a little
        earlier, and a resumed run requests those uids again. They are then sampled again, and not learned from twice.
        Prompts that share a budget with others are given the same number of rollouts again, so that the total holds.
        With a stream it holds the stream, and ends the update before: the trainer saves between two of them.
        """
        self._end_update()
        sent = [[finished.batch for finished in round.sent] for round in self._rounds.values() if not round.closed]
        batches = [self._planner.unlearned(Batch.concatenate(batches)) for batches in sent if batches]
        return {
            "name": self.allocation.allocator.name,
            **{name: None if part is None else part.state_dict() for name, part in self._parts.items()},
            "drawn": 0 if self.extra_prompts is None else self.extra_prompts.drawn,
            "unfinished": [_without_data(batch) for batch in batches if batch.prompts],
            "learned_uids": sorted(self._learned_in_flight()) if self._streamed is None else [],
            "given": dict(self._planner.given),
        } | ({} if self._streamed is None else {"stream": self._streamed.state()})

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the ``state`` of a run with the same allocator, baseline and selection, or raise ValueError."""
        saved = SavedValues({"given": {}, "stream": None, **state}, "the coordinator", SAVED)
        unfinished, given, uids = saved.values["unfinished"], saved.values["given"], saved.texts("learned_uids")
        if not fits(unfinished, list[Batch]):
            raise saved.refusal("unfinished", "a list of batches")
        if not fits(given, dict[str, int]) or min(given.values(), default=0) < 0:
            raise saved.refusal("given", "a number of rollouts by uid")
        drawn = saved.count("drawn")
        for name, part in self._parts.items():
            if part is not None:
                part.load_state_dict(saved.state(name))
        if self.extra_prompts is not None:
            self.extra_prompts.drawn = drawn
        for batch in unfinished:
            self.allocation.observe(batch)
        self._planner.learned_uids.update(uids)
        self._planner.given.clear()
        self._planner.given.update(given)
        if self._streamed is not None and saved.values["stream"] is not None:
            self._streamed.load(saved.state("stream"))
        self._resumed = True

    @property
    def _parts(self) -> dict[str, Any]:
        """What learns, by its key in the state; None for what is left out."""
        return {**self.allocation.parts, "selection": self.selection}

    def _keep_reissued(self, request: TrainerRequest) -> None:
        """Forget the uids that the first request after a resume does not have, because verl reissues them all."""
        if self._resumed:
            uids = set(uids_of(request.prompts))
            self._planner.learned_uids.intersection_update(uids)
            for uid in self._planner.given.keys() - uids:
                del self._planner.given[uid]
            self._resumed = False

    def _learned_in_flight(self) -> set[str]:
        """Return learned uids that may have been in flight when verl last saved its queue.

        That was after the log of the step before, so a commit that ended before that log is not among them.
        """
        found = self._acknowledged | self._planner.learned_uids
        for round in self._rounds.values():
            found.update(round.worker if round.closed else (uid for each in round.sent for uid in each.uids))
        return found

    def _plan(self, round: AllocationRound, act: Callable[..., None], *args: Any) -> None:
        """Have the planner ``act`` on a round. End the run if that raises."""
        try:
            act(*args)
        except Exception as error:
            self.fail(f"allocation failed at step {round.request.step}: {error}")
            logger.exception("Allocation failed at step %s", round.request.step)
            return
        if round.closed and not self.refills and not any(round.batch.rollouts) and (asked := round.batch.asked.sum()):
            self.fail(
                f"rollouts of step {round.request.step} must arrive, got none of {asked}; the latest failed with "
                f"{round.latest_failure}"
            )

    def _end_update(self) -> None:
        """Have the stream, if there is one, learn from the update that the trainer has taken."""
        if self._streamed is not None:
            self._streamed.trained()

    def _count_failures(self, task: RolloutTask, result: TaskResult) -> None:
        if result.rollouts:
            self._failed_in_a_row = 0
            return
        self._failed_in_a_row += len(task.sessions)
        if self.refills and self._failed_in_a_row >= FAILED_IN_A_ROW:
            self.fail(
                f"rollouts must arrive, got none of the latest {self._failed_in_a_row}; the last failed with "
                f"{', '.join(result.failures[-1:]) or result.error}"
            )

    def _submit(self, pending: PendingTask) -> None:
        self._pending[pending.task.id] = pending
        self._send(pending)

    def _send(self, pending: PendingTask) -> None:
        """Send a task to the worker that holds its row. Without such a worker the task waits."""
        task, worker, seconds = pending.task, pending.round.worker[pending.task.uid], math.inf
        if worker and isinstance(task, CommitTask):
            self.pool.send(worker, replace(task, swept=True) if task.uid in pending.round.reassigned else task)
            seconds = self.allocation.limits.commit
        elif worker and isinstance(task, RolloutTask):
            self.pool.send(worker, task)
            seconds = math.inf if task.seconds is None else task.seconds + GRACE_SECONDS
        pending.end = time.monotonic() + seconds

    def _end_commit(self, round: AllocationRound, uid: str, result: TaskResult) -> None:
        if result.error is not None:
            self.fail(f"the commit of a prompt failed at step {round.request.step}: {result.error}")
            return
        self._acknowledged.add(uid)
        if self._streamed is not None:
            self._streamed.committed(uid)
        self._release(round, uid)

    def _release(self, round: AllocationRound, uid: str) -> None:
        """Remove ``uid``, for which the worker has done all, from its round, and the round after its last uid."""
        del round.worker[uid]
        if not round.worker:
            del self._rounds[round.request.id]
            self._planner.learned_uids.difference_update(uids_of(round.request.prompts))
            self.pool.forget_rows(round.request)


def _without_data(batch: Batch) -> Batch:
    """Return ``batch`` without what engines attached to the prompts, which an allocator does not need to learn."""
    return replace(batch, prompts=tuple(replace(prompt, data=None) for prompt in batch.prompts))
