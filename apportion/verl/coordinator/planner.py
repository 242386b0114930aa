"""What every planner of the trainer's prompts has: requests in progress, tasks, commits, and what was learned from."""

import math
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from apportion.advantages import gated
from apportion.allocators import check_rewards
from apportion.predictors.saved import SavedValues
from apportion.runs.declared_types import fits
from apportion.types import Batch, Group, Needs, Prompt
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
    """What was learned from: all prompts of a round or of an update, and the rule's metrics of them."""

    batch: Batch
    groups: Sequence[Group]
    metrics: dict[str, float]


@dataclass
class Planner(ABC):
    """Plans requests. It hands tasks to ``submit`` and does not wait for them, and calls ``end`` with what it learned.

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
        """Return what the log says beside what was learned from. The trainer has trained on what it took."""

    def next_update(self, done: bool, queue: Collection[str] | None) -> TrainerUpdate:
        """Return what the trainer takes of a stream; see ``Coordinator.next_update``."""
        raise NotImplementedError("only a stream makes updates")

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs beside what was learned. The trainer has trained on what it took."""
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

    def check_readable(self, batch: Batch) -> None:
        """Raise ValueError unless all that learns from ``batch`` can read its rewards."""
        for reader in self._readers:
            with naming_the_verdict():
                check_rewards(reader, batch)
        if gate := self.allocation.outcome_gate:
            for prompt, rollouts in zip(batch.prompts, batch.rollouts, strict=True):
                with naming_the_verdict():
                    gated(Group(prompt, rollouts), gate)

    @cached_property
    def _readers(self) -> list[Any]:
        """What learns and needs to know more of a rollout than its reward."""
        return [part for part in self.allocation.parts.values() if part is not None and part.needs != Needs()]


@contextmanager
def naming_the_verdict() -> Iterator[None]:
    """Have a ValueError of rewards that cannot be read name the setting that helps."""
    try:
        yield
    except ValueError as error:
        raise ValueError(
            f"allocation.verdict must say which rollouts are correct: {error}; or set allocation.verdict=score, "
            "with which a reward above 0 is correct"
        ) from error
