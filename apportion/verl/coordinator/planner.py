"""What all planners of the trainer's prompts share: open requests, tasks, commits, and lessons of finished batches."""

import math
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from apportion.predictors.saved import SavedValues
from apportion.runs.declared_types import fits
from apportion.types import Batch, Group, Prompt
from apportion.verl.coordinator.commits import FinishedPrompts, History, commit_tasks
from apportion.verl.coordinator.messages import (
    RolloutTask,
    RowAddress,
    TaskResult,
    TrainerRequest,
    TrainerUpdate,
    WorkerTask,
)
from apportion.verl.coordinator.settings import VerlAllocation

Then = Callable[[TaskResult], None]


@dataclass(eq=False)
class OpenRequest:
    """A request of the trainer in progress.

    ``worker`` maps each uid that is not done to the worker that holds its row, "" for none. ``reassigned`` are the uids
    whose first worker died. ``sessions`` are the number of those requested so far, and ``answers`` the distinct ones
    without labels in order of arrival, both by group.
    """

    request: TrainerRequest
    worker: dict[str, str]
    reassigned: set[str] = field(default_factory=set)
    sessions: Counter[str] = field(default_factory=Counter)
    answers: defaultdict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))


@dataclass(frozen=True)
class Learned:
    """A lesson: all prompts of a round or an update, and the rule's metrics of them."""

    batch: Batch
    groups: Sequence[Group]
    metrics: dict[str, float]


@dataclass
class Planner(ABC):
    """Plans requests. It passes tasks to ``submit`` without waiting for them, and its lessons to ``end``.

    An exception that it raises is a fault of the allocator or the set-up, and ends the run. ``counts`` are for the log.

    ``given`` has the number of rollouts of each prompt that shares a budget, once it is known. A prompt that a resumed
    run requests again gets that number again, because the others of its budget have theirs.
    """

    allocation: VerlAllocation
    submit: Callable[[OpenRequest, WorkerTask, Then | None], None]
    end: Callable[[Learned], None]
    counts: defaultdict[str, float]
    given: dict[str, int] = field(default_factory=dict, init=False)

    @abstractmethod
    def start(self, opened: OpenRequest) -> None:
        """Plan the prompts of a request."""

    @abstractmethod
    def committed(self, uid: str) -> None:
        """Note that the trainer can find the rows of ``uid``."""

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """Return further metrics for the log. By now the trainer has trained on what it took."""

    def next_update(self, done: bool, queue: Collection[str] | None) -> TrainerUpdate:
        """Return what the trainer takes of a stream; see ``Coordinator.next_update``."""
        raise NotImplementedError("only a stream makes updates")

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs besides what was learned. By now the trainer has trained on what it took."""
        return {"given": dict(self.given)}

    def load(self, saved: SavedValues) -> None:
        """Restore ``state``."""
        given = saved.values["given"]
        if not fits(given, dict[str, int]) or min(given.values(), default=0) < 0:
            raise saved.refusal("given", "a number of rollouts by uid")
        self.given = dict(given)

    def request(self, opened: OpenRequest, address: RowAddress, count: int, then: Then) -> None:
        """Request ``count`` rollouts, as the next sessions of a group."""
        group, limit = address.group, self.allocation.deadline_seconds
        first = address.first_session + opened.sessions[group]
        opened.sessions[group] += count
        sessions, seconds = tuple(range(first, first + count)), None if math.isinf(limit) else limit
        answers = tuple(opened.answers[group]) if self.allocation.label_free else ()
        self.submit(opened, RolloutTask(f"{group}:{first}", address, sessions, seconds, answers), then)

    def history(self, prompts: Sequence[Prompt]) -> dict[str, History]:
        """Return the baselines of ``prompts`` from what was learned so far, and their weights in the loss, by id."""
        baseline, selection = self.allocation.baseline, self.allocation.selection
        baselines = [None] * len(prompts) if baseline is None else baseline.predict(prompts).tolist()
        weights = None if selection is None else selection.weights(prompts)
        each = zip(baselines, [1.0] * len(prompts) if weights is None else weights.tolist(), strict=True)
        return dict(zip((prompt.id for prompt in prompts), each, strict=True))

    def commit(self, opened: OpenRequest, finished: FinishedPrompts) -> None:
        """Have the trainer find the rows of ``finished`` prompts of a request."""
        for task in commit_tasks(finished, opened.sessions, self.allocation.outcome_gate):
            self.submit(opened, task, None)
