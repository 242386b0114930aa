"""The state of a round, as plain data."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from apportion.types import Batch, Group, Plan, Rollout
from apportion.verl.coordinator.messages import TrainerRequest, WorkerTask


NO_PLAN = Plan(np.zeros(0, np.int64))


@dataclass(eq=False)
class PlannedBatch:
    """Prompts that are planned together: a single one if the allocator is separable, else all of the round.

    ``plan`` is the wave in progress. ``unfinished`` of its prompts still run, and ``arrived`` holds its rollouts by
    index in the batch. ``groups`` are set once nothing more is planned, and ``baselines`` by prompt id if there is a
    baseline from history.
    """

    batch: Batch
    uids: tuple[str, ...]
    plan: Plan = field(default_factory=lambda: NO_PLAN)
    unfinished: int = 0
    arrived: dict[int, list[Rollout]] = field(default_factory=dict)
    groups: tuple[Group, ...] | None = None
    baselines: dict[str, float] | None = None

    def begin(self, plan: Plan) -> list[int]:
        """Begin the wave of ``plan``. Return the indices of the prompts that it gives rollouts to."""
        chosen: list[int] = plan.counts.nonzero()[0].tolist()
        self.plan, self.unfinished, self.arrived = plan, len(chosen), {q: [] for q in chosen}
        return chosen

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
    ``reassigned`` are the uids whose first worker died.
    ``unfinished`` batches are still planned. A batch with nothing to train on is ``withheld`` until ``trainable``: some
    other batch of the round has a row. The round is ``closed`` once the allocator has learned from it, and over when
    the last uid is committed. It is ``counted`` once the metrics have it.

    ``waves`` and ``sessions`` are counted by group, ``extra`` prompts by the uid that their rows are written under.
    """

    request: TrainerRequest
    worker: dict[str, str]
    batches: list[PlannedBatch] = field(default_factory=list)
    unfinished: int = 0
    withheld: list[PlannedBatch] = field(default_factory=list)
    trainable: bool = False
    closed: bool = False
    counted: bool = False
    reassigned: set[str] = field(default_factory=set)
    latest_failure: str = "no error"
    metrics: dict[str, float] = field(default_factory=dict)
    waves: Counter[str] = field(default_factory=Counter)
    sessions: Counter[str] = field(default_factory=Counter)
    extra: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def batch(self) -> Batch:
        """All prompts, in the order of the request."""
        batches = [planned.batch for planned in self.batches]
        return batches[0] if len(batches) == 1 else Batch.concatenate(batches)

    @property
    def asked(self) -> int:
        """The number of rollouts that were requested."""
        return int(sum(planned.batch.asked.sum() for planned in self.batches))

    @property
    def groups(self) -> list[Group]:
        """The groups of the batches that are finished."""
        return [group for planned in self.batches for group in planned.groups or ()]

    @property
    def committed(self) -> list[Batch]:
        """The batches of which the trainer has all groups."""
        return [planned.batch for planned in self.batches if not any(uid in self.worker for uid in planned.uids)]


@dataclass(eq=False)
class PendingTask:
    """A task without a result. For rollouts: their batch, the prompt's ``index`` in it, and earlier attempts."""

    round: AllocationRound
    task: WorkerTask
    planned: PlannedBatch | None = None
    index: int = 0
    attempt: int = 0
