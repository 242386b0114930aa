"""The coordinator: it lets a planner plan the trainer's requests, assigns tasks to workers, and reports the results.

It does not know Ray: a ``WorkerPool`` carries tasks to workers. Each request of the trainer has its own budget, because
verl may refill prompts at any time.

It lives in the trainer's process and dies with it. So it keeps no record of its own: a resumed run continues from
verl's checkpoint. An error of the allocator ends the run.
"""

import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any, Protocol

from apportion.engines.metrics import allocation_metrics
from apportion.predictors.saved import SavedValues
from apportion.scheduler import OfferedScheduler
from apportion.scheduler.scheduler import FAILED_IN_A_ROW
from apportion.types import Batch
from apportion.verl.coordinator.messages import (
    CommitTask,
    RolloutTask,
    TaskResult,
    TrainerRequest,
    TrainerUpdate,
    WorkerTask,
    uids_of,
)
from apportion.verl.coordinator.planner import Learned, OpenRequest, Planner, Then
from apportion.verl.coordinator.rounds import ExtraPrompts, RoundPlanner
from apportion.verl.coordinator.selection import PromptSelection
from apportion.verl.coordinator.settings import VerlAllocation
from apportion.verl.coordinator.streamed import StreamedPlanner

logger = logging.getLogger(__name__)

GRACE_SECONDS = 60.0
"""Seconds after a task's deadline in which its worker may still answer. After them its rollouts have failed."""

COUNTED = ("retried", "errors", "expired", "reassigned", "empty_rounds")
"""Counters that ``metrics`` reports."""

SAVED = ("name", "allocator", "baseline", "selection", "drawn", "unfinished", "learned_uids", "given", "stream")
"""Keys of the state, in a checkpoint."""
ADDED: Mapping[str, Any] = {"unfinished": [], "learned_uids": [], "given": {}, "stream": None}
"""Keys that older states lack, without rounds, without a stream or of 0.3.0, and their values."""


class WorkerPool(Protocol):
    """Carries tasks to named workers. Its methods return at once, and call the coordinator only later."""

    def send(self, worker: str, task: WorkerTask) -> None:
        """Have ``worker`` begin ``task``. Later its result arrives or the worker is lost."""

    def hand_over(self, worker: str, request: TrainerRequest, uids: Sequence[str]) -> None:
        """Have ``worker`` take over the rows of ``uids``."""


@dataclass(eq=False)
class PendingTask:
    """A task without a result yet. ``task`` is None for a validation that verl runs itself.

    ``then`` is called with the result of rollouts. The task is given up at ``end``, by ``time.monotonic``.
    """

    opened: OpenRequest
    uid: str
    task: WorkerTask | None = None
    then: Then | None = None
    end: float = math.inf


@dataclass
class Coordinator:
    """Has requests planned, tasks done, and groups committed. With a ``selection`` it also chooses the prompts.

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

    def __post_init__(self) -> None:
        self._requests: dict[str, OpenRequest] = {}
        self._pending: dict[str, PendingTask] = {}
        self._learned: list[Learned] = []
        self._counts, self._errors = defaultdict[str, float](float), Counter[str]()
        self._failed_in_a_row, self._latest_failure, self._step = 0, "no error", 0
        own = (self.allocation, self._submit, self._end, self._counts)
        self._planner: Planner
        if self.stream is None:
            self._planner = RoundPlanner(*own, self.selection or self.extra_prompts)
        else:
            self._planner = StreamedPlanner(*own, self.stream)

    @property
    def waits(self) -> dict[str, int]:
        """The number of unfinished tasks by the worker that has them; "" for those that wait for a worker."""
        return dict(Counter(pending.opened.worker[pending.uid] for pending in self._pending.values()))

    def fail(self, message: str) -> None:
        """End the run with ``message``, unless an earlier error does."""
        self.error = self.error or message

    def check(self) -> None:
        """Raise RuntimeError if the run cannot continue."""
        if self.error is not None:
            raise RuntimeError(self.error)

    def open(self, request: TrainerRequest) -> None:
        """Begin a request.

        Raises RuntimeError if the run cannot continue, ValueError for a size that cannot be planned.
        """
        self.check()
        self.allocation.allocator.size(len(request.prompts))
        if self.selection is not None:
            self.selection.check_prompts(request.prompts)
        if request.prompts:
            self._step = request.step
            with self._ending(f"allocation failed at step {request.step}"):
                self._planner.start(self._begin(request))

    def validate(self, request: TrainerRequest) -> None:
        """Hold the rows of a validation, which verl does itself, until their workers say that they are done."""
        opened = self._begin(request)
        self._pending |= {uid: PendingTask(opened, uid) for uid in opened.worker}

    def next_update(self, done: bool, queue: Collection[str] | None = None) -> TrainerUpdate:
        """Return what the trainer takes from the stream; ``done`` says that the update before has trained.

        ``queue`` are the uids that are finished in the trainer's queue, when it first asks. Raises RuntimeError if the
        run cannot continue.
        """
        self.check()
        with self._ending(f"allocation failed at step {self._step}"):
            return self._planner.next_update(done, queue)
        raise RuntimeError(self.error)

    def choose(self, rows: int) -> list[int]:
        """Return those rows of the trainer's data set, which has so many ``rows``, that its next batch has.

        Raises RuntimeError if the run cannot continue, ValueError without a selection.
        """
        if self.selection is None:
            raise ValueError("rows are only chosen with a selection, got none; set allocation.selection")
        self.check()
        with self._ending(f"the choice of prompts failed after step {self._step}"):
            return self.selection.choose(rows)
        raise RuntimeError(self.error)

    def receive(self, results: Sequence[TaskResult]) -> None:
        """Take results of any tasks, in any order. Ignore those of tasks that are not pending."""
        for result in results:
            pending = self._pending.pop(result.id, None)
            if pending is None or self.error is not None:
                continue
            if pending.then is None:
                self._release(pending, result)
                continue
            with self._ending(f"allocation failed at step {pending.opened.request.step}"):
                self._count(pending, result)
                pending.then(result)

    def lose(self, worker: str, others: Sequence[str]) -> None:
        """Divide the rows of the dead ``worker`` among the living ``others``, in turn.

        Its unfinished rollouts start again there. If no worker lives they wait: ``lose("", [name])`` gives them to a
        worker that was restarted.
        """
        turns, moved = cycle(others or [""]), set[str]()
        for opened in self._requests.values():
            given: dict[str, list[str]] = {}
            for uid, holder in opened.worker.items():
                if holder == worker:
                    given.setdefault(next(turns), []).append(uid)
            for other, uids in given.items():
                if other:
                    self.pool.hand_over(other, opened.request, uids)
                    self._counts["reassigned"] += len(uids)
                moved.update(uids)
                opened.reassigned.update(uids)
                opened.worker.update(dict.fromkeys(uids, other))
        for pending in self._pending.values():
            if pending.uid in moved:
                self._send(pending)

    def expire(self, now: float) -> None:
        """Give up tasks whose time was over at ``now``, by ``time.monotonic``. The pool calls it twice a second."""
        for id in [id for id, pending in self._pending.items() if pending.end <= now]:
            if self._pending[id].then is None:
                limit = self.allocation.limits.commit  # TransferQueue is gone if a commit takes longer
                late = TaskResult(id, error=f"it must end within {limit:g} s, got no answer of its worker")
            else:
                late = TaskResult(id, failures=(f"no result of {id}",), expired=True)
            self.receive([late])

    def metrics(self) -> dict[str, float]:
        """Return how rollouts were spent since the last call in which a round or an update had ended.

        The metrics of a selection have their prefix; the others are under ``allocation/`` in the log.

        Raises RuntimeError if the run cannot continue.
        """
        self.check()
        found, learned = self._planner.metrics(), self._learned.copy()
        self._learned.clear()
        if not learned:
            return found
        batch = Batch.concatenate([each.batch for each in learned])
        groups = [group for each in learned for group in each.groups]
        found |= allocation_metrics(batch, groups, self.allocation.trained_estimator)
        for name in learned[-1].metrics:
            values = [each.metrics[name] for each in learned if name in each.metrics]
            found[name] = sum(values) / len(values)
        found |= {"requests": float(len(learned))} | {name: self._counts[name] for name in COUNTED}
        if self._errors:
            by_worker = ", ".join(f"{count} on {name or 'no worker'}" for name, count in self._errors.most_common())
            latest = self._latest_failure
            logger.warning("Attempts failed until step %d: %s; the latest with %s", self._step, by_worker, latest)
        self._counts.clear()
        self._errors.clear()
        return found | ({} if self.selection is None else self.selection.metrics())

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: what the allocator has learned, and what a resumed run needs beside it.

        An asynchronous trainer saves its queue a little earlier, and a resumed run requests prompts again that are
        learned from already. They are then sampled again, and not learned from twice. Prompts that share a budget with
        others are given the same number of rollouts again, so that the total holds. The update before has ended,
        because the trainer saves between two of them.
        """
        planned = self._planner.state()
        return {
            "name": self.allocation.allocator.name,
            **{name: None if part is None else part.state_dict() for name, part in self._parts.items()},
            "drawn": 0 if self.extra_prompts is None else self.extra_prompts.drawn,
            **planned,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the ``state`` of a run with the same allocator, baseline and selection, or raise ValueError."""
        saved = SavedValues({**ADDED, **state}, "the coordinator", SAVED)
        for name, part in self._parts.items():
            if part is not None:
                part.load_state_dict(saved.state(name))
        if self.extra_prompts is not None:
            self.extra_prompts.drawn = saved.count("drawn")
        self._planner.load(saved)

    @property
    def _parts(self) -> dict[str, Any]:
        """What learns, by its key in the state; None for what is left out."""
        return {**self.allocation.parts, "selection": self.selection}

    @contextmanager
    def _ending(self, what: str) -> Iterator[None]:
        """End the run if the body raises. ``what`` names the step that failed."""
        try:
            yield
        except Exception as error:
            self.fail(f"{what}: {error}")
            logger.exception("The run cannot continue: %s", what)

    def _begin(self, request: TrainerRequest) -> OpenRequest:
        holders = dict(zip(uids_of(request.prompts), request.workers, strict=True))
        opened = self._requests[request.id] = OpenRequest(request, holders)
        return opened

    def _end(self, learned: Learned) -> None:
        """Keep the lesson for the log. End the run if no rollout of it arrived, unless verl replaces it."""
        self._learned.append(learned)
        asked = learned.batch.asked.sum()
        if asked and not self.refills and not any(learned.batch.rollouts):
            self.fail(
                f"rollouts of step {self._step} must arrive, got none of {asked}; the latest failed with "
                f"{self._latest_failure}"
            )

    def _count(self, pending: PendingTask, result: TaskResult) -> None:
        """Count the failed rollouts of a task, and keep its answers. Raise RuntimeError for a broken set-up."""
        task, opened = pending.task, pending.opened
        assert isinstance(task, RolloutTask)
        if result.error is not None:
            raise RuntimeError(result.error)
        self._failed_in_a_row = 0 if result.rollouts else self._failed_in_a_row + len(task.sessions)
        self._counts["errors"] += len(result.failures)
        self._counts["expired"] += result.expired
        if result.failures:
            self._errors[opened.worker[task.uid]] += len(result.failures)
            self._latest_failure = result.failures[-1]
        if self.refills and self._failed_in_a_row >= FAILED_IN_A_ROW:
            self.fail(
                f"rollouts must arrive, got none of the latest {self._failed_in_a_row}; the last failed with "
                f"{self._latest_failure}"
            )
        answers = (rollout.answer for rollout in result.rollouts)
        opened.answers[task.address.group] |= dict.fromkeys(answer for answer in answers if answer is not None)

    def _submit(self, opened: OpenRequest, task: WorkerTask, then: Then | None) -> None:
        pending = self._pending[task.id] = PendingTask(opened, task.uid, task, then)
        self._send(pending)

    def _send(self, pending: PendingTask) -> None:
        """Send a task to the worker that holds its row. Without such a worker the task waits."""
        task, worker, seconds = pending.task, pending.opened.worker[pending.uid], math.inf
        if worker and isinstance(task, CommitTask):
            self.pool.send(worker, replace(task, swept=task.uid in pending.opened.reassigned))
            seconds = self.allocation.limits.commit
        elif worker and isinstance(task, RolloutTask):
            self.pool.send(worker, task)
            seconds = math.inf if task.seconds is None else task.seconds + GRACE_SECONDS
        pending.end = time.monotonic() + seconds

    def _release(self, pending: PendingTask, result: TaskResult) -> None:
        """Remove a uid whose work is done from its request; remove the request after its last uid."""
        opened = pending.opened
        if result.error is not None:
            self.fail(f"the commit of a prompt failed at step {opened.request.step}: {result.error}")
            return
        if pending.task is not None:
            self._planner.committed(pending.uid)
        del opened.worker[pending.uid]
        if not opened.worker:
            del self._requests[opened.request.id]
