"""The state of a round, as plain data."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from apportion.types import Batch, Group, Mask, Plan, Rollout
from apportion.verl.coordinator.messages import (
    TaskResult,
    TrainerRequest,
    ValidationTask,
    WorkerTask,
    address_of,
    uids_of,
)

History = Mapping[str, tuple[float | None, float]]
"""The baseline of each prompt from earlier rounds, None without one, and its weight in the loss, by prompt id."""

NO_PLAN = Plan(np.zeros(0, np.int64))


@dataclass(eq=False)
class FinishedPrompts:
    """All prompts under some uids, with all their rollouts, their ``groups``, and their ``history``."""

    batch: Batch
    groups: tuple[Group, ...]
    history: History

    @property
    def uids(self) -> tuple[str, ...]:
        """The uids of the prompts."""
        return uids_of(self.batch.prompts)

    @property
    def trainable(self) -> bool:
        """Whether a row of them is trained on."""
        return any(np.count_nonzero(group.keep) for group in self.groups)


@dataclass(eq=False)
class PlannedBatch:
    """Prompts that are planned together: a single one if the allocator is separable, else all of the round.

    ``plan`` is the wave in progress, of which the prompts ``running`` are not done. ``arrived`` holds its rollouts.
    Both are by index in the batch. ``final`` [P] are the prompts that the wave is the last of, and ``members`` the
    indices of each uid's prompts. ``early`` are the uids that finished before the batch, and ``ended`` when prompts of
    the wave ended that wait for the others of it.

    ``groups`` are set once nothing more is planned, the ``history`` when the first prompt finishes. ``given`` is the
    only plan of prompts that a resumed run requests again, None for those that the allocator plans.
    """

    batch: Batch
    plan: Plan = field(default_factory=lambda: NO_PLAN)
    running: set[int] = field(default_factory=set)
    arrived: dict[int, list[Rollout]] = field(default_factory=dict)
    final: Mask = field(default_factory=lambda: np.zeros(0, bool))
    members: dict[str, list[int]] = field(default_factory=dict)
    early: set[str] = field(default_factory=set)
    groups: tuple[Group, ...] = ()
    history: History | None = None
    given: Plan | None = None
    ended: list[float] = field(default_factory=list)

    def begin(self, plan: Plan, final: Mask) -> list[int]:
        """Begin the wave of ``plan``. Return the indices of the prompts that it gives rollouts to."""
        chosen: list[int] = plan.counts.nonzero()[0].tolist()
        self.plan, self.running, self.arrived, self.final = plan, set(chosen), {q: [] for q in chosen}, final
        self.members, self.ended = {}, []
        for q, prompt in enumerate(self.batch.prompts):
            self.members.setdefault(address_of(prompt).uid, []).append(q)
        return chosen

    def ends_early(self, uid: str) -> bool:
        """Return whether nothing can change the prompts under ``uid`` any more, and they have not finished yet."""
        own = self.members[uid]
        return uid not in self.early and all(self.final[q] and q not in self.running for q in own)

    def so_far(self, uid: str) -> Batch:
        """Return the prompts under ``uid``, with what has arrived of the wave."""
        own = self.members[uid]
        return self.batch.part(own).add(Plan(self.plan.counts[own]), [self.arrived.get(q, ()) for q in own])

    def end(self) -> None:
        """Add the wave to the batch."""
        self.batch = self.batch.add(self.plan, [self.arrived.get(q, ()) for q in range(len(self.batch.prompts))])

    def answers(self, q: int) -> tuple[str, ...]:
        """Return the distinct answers to prompt ``q`` so far, in order of arrival."""
        rollouts = (*self.batch.rollouts[q], *self.arrived.get(q, ()))
        return tuple(dict.fromkeys(rollout.answer for rollout in rollouts if rollout.answer is not None))


@dataclass(eq=False)
class AllocationRound:
    """A trainer request in progress.

    ``worker`` maps each uid that the trainer still waits for to the worker that holds its row, "" for none.
    ``reassigned`` are the uids whose first worker died. ``unfinished`` batches are still planned. Finished prompts are
    ``withheld`` until the round is ``trainable``, because one of them has a row; then their commits are ``sent``. The
    round is ``closed`` once the allocator has learned from it, and over when the last uid is committed.

    ``sessions`` are those requested so far, by group. ``extra`` prompts are counted by the uid that their rows are
    written under, ``errors`` by worker. ``waited`` are the seconds in which prompts waited for others of their wave,
    added up.
    """

    request: TrainerRequest
    worker: dict[str, str]
    batches: list[PlannedBatch] = field(default_factory=list)
    unfinished: int = 0
    withheld: list[FinishedPrompts] = field(default_factory=list)
    sent: list[FinishedPrompts] = field(default_factory=list)
    trainable: bool = False
    closed: bool = False
    reassigned: set[str] = field(default_factory=set)
    latest_failure: str = "no error"
    metrics: dict[str, float] = field(default_factory=dict)
    sessions: Counter[str] = field(default_factory=Counter)
    extra: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    waited: float = 0.0

    @property
    def batch(self) -> Batch:
        """All prompts, in the order of the request."""
        batches = [planned.batch for planned in self.batches]
        return batches[0] if len(batches) == 1 else Batch.concatenate(batches)

    @property
    def groups(self) -> list[Group]:
        """The groups of the batches that are finished."""
        return [group for planned in self.batches for group in planned.groups]

    def count(self, worker: str, result: TaskResult) -> None:
        """Count what failed of the rollouts that ``worker`` was asked for.

        Raises RuntimeError for a fault of the set-up.
        """
        if result.error is not None:
            raise RuntimeError(result.error)
        self.counts["errors"] += len(result.failures)
        self.counts["expired"] += result.expired
        self.errors[worker] += len(result.failures)
        self.latest_failure = result.failures[-1] if result.failures else self.latest_failure


@dataclass(eq=False)
class PendingTask:
    """A task without a result, which is given up at ``end``, by ``time.monotonic``.

    For rollouts: their batch, the prompt's ``index`` in it, and earlier attempts.
    """

    round: AllocationRound
    task: WorkerTask | ValidationTask
    planned: PlannedBatch | None = None
    index: int = 0
    attempt: int = 0
    end: float = math.inf
