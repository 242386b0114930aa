"""The messages between trainer, coordinator and workers, as frozen plain data.

A *uid* names a prompt that the trainer requested. It begins the keys of all rows that are written for that prompt. An
*extra prompt* is one that an allocator draws beyond the trainer's. Its rows are written under the uid of a prompt of
the same round, so that the trainer finds exactly the uids that it requested.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from apportion.types import Prompt, Rollout

Status = Literal["finished", "failure"]


@dataclass(frozen=True)
class RowAddress:
    """Where a prompt's rollouts are written: ``Prompt.data`` of every prompt in a round.

    ``group`` is the name of the prompt's group, ``uid`` that of the trainer's prompt that its rows belong to, and
    ``first_session`` its first session there. ``row`` is the data of an extra prompt, None for the trainer's own.
    """

    group: str
    uid: str
    first_session: int = 0
    row: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class TrainerRequest:
    """The rows of one call of the trainer: one round of allocation, with its own budget.

    ``workers`` [P] are the names of the workers that hold the rows of ``prompts`` [P], whose ``data`` is a
    ``RowAddress``. ``chunks`` are references to the rows of each worker, which another one may take over.
    """

    step: int
    prompts: tuple[Prompt, ...]
    workers: tuple[str, ...]
    chunks: tuple[Any, ...] = ()

    @property
    def id(self) -> str:
        """The uid of the first prompt, which no other request has."""
        return address_of(self.prompts[0]).uid


@dataclass(frozen=True)
class RolloutTask:
    """Asks a worker for rollouts of one prompt, one for each session. After ``seconds`` it gives up missing ones.

    ``answers`` are the prompt's distinct answers so far, each as it was first written.
    """

    id: str
    address: RowAddress
    sessions: tuple[int, ...]
    seconds: float | None = None
    answers: tuple[str, ...] = ()

    @property
    def uid(self) -> str:
        """The uid under which the rollouts are written."""
        return self.address.uid


@dataclass(frozen=True)
class TaskResult:
    """The result of task ``id``: the rollouts that arrived, and the errors of those that failed.

    ``expired`` is set if rollouts were given up at the deadline. ``error`` describes a fault of the set-up, after which
    trying again is useless.
    """

    id: str
    rollouts: tuple[Rollout, ...] = ()
    failures: tuple[str, ...] = ()
    expired: bool = False
    error: str | None = None


@dataclass(frozen=True)
class WrittenRollout:
    """A rollout's completion: the address of its rows in the TransferQueue. Equal if the tokens are equal.

    ``lengths`` [O] are the response lengths of the O outputs of its agent loop, nearly always one. ``outputs`` [O] are
    set if a later step may train on the rollout again: their fields, those of each token as arrays.
    """

    digest: bytes
    uid: str = field(compare=False)
    session: int = field(compare=False)
    lengths: tuple[int, ...] = field(compare=False)
    outputs: tuple[dict[str, Any], ...] | None = field(default=None, compare=False, repr=False)

    @property
    def keys(self) -> list[str]:
        """The rows' keys, as verl writes them: ``{uid}_{session}_{output}``."""
        return row_keys(self.uid, self.session, len(self.lengths))


@dataclass(frozen=True)
class TrainedRow:
    """A rollout that is trained on: its ``position`` in the group. A reused one is written again as ``session``."""

    position: int
    written: WrittenRollout
    session: int | None = None

    def keys(self, uid: str) -> list[str]:
        """Return the keys of its rows under ``uid``."""
        session = self.written.session if self.session is None else self.session
        return row_keys(uid, session, len(self.written.lengths))


@dataclass(frozen=True)
class TrainedGroup:
    """The ``rows`` of a group to train on, and the ``columns`` [G] over all its rollouts, which each row gets.

    They are the ``rewards``, ``tokens`` and ``rounds``, the name of the ``group``, and the ``weight`` of its prompt in
    the loss, which undoes a selection. ``score_norms`` are there if all are known, and ``baseline`` with one from
    history.
    """

    columns: Mapping[str, Any]
    rows: tuple[TrainedRow, ...]


@dataclass(frozen=True)
class CommitTask:
    """Asks a worker to commit the groups of ``uid`` for the trainer, and to clear its rows that are in no group.

    ``swept`` is set if a worker died with the row of ``uid``: it may have written rows that nobody knows of.
    """

    uid: str
    groups: tuple[TrainedGroup, ...]
    status: Status
    swept: bool = False

    @property
    def id(self) -> str:
        """The name of the task."""
        return f"{self.uid}:commit"

    @property
    def rows(self) -> list[TrainedRow]:
        """The rollouts that are trained on."""
        return [row for group in self.groups for row in group.rows]

    @property
    def keys(self) -> set[str]:
        """The keys of their rows."""
        return {key for row in self.rows for key in row.keys(self.uid)}


WorkerTask = RolloutTask | CommitTask


@dataclass(frozen=True)
class TrainerUpdate:
    """What a trainer may do next under a stream: train on the rows of ``uids``, if any, and clear ``dropped``.

    ``wanted`` are the prompts that it must bring, beyond those of its steps.
    """

    uids: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    wanted: int = 0


@dataclass(frozen=True)
class WorkerPlace:
    """Where a worker runs: Ray's id of its node, the node's host name, and its process, which began at ``started``."""

    node: str
    host: str
    pid: int
    started: float


def address_of(prompt: Prompt) -> RowAddress:
    """Return where the rollouts of a prompt of a round are written."""
    return prompt.data


def uids_of(prompts: Iterable[Prompt]) -> tuple[str, ...]:
    """Return the uids under which the rollouts of ``prompts`` are written, each once, in their order."""
    return tuple(dict.fromkeys(address_of(prompt).uid for prompt in prompts))


def row_keys(uid: str, session: int, outputs: int) -> list[str]:
    """Return the keys of the rows of a session.

    >>> row_keys("b2f1", 3, 2)
    ['b2f1_3_0', 'b2f1_3_1']
    """
    return [f"{uid}_{session}_{output}" for output in range(outputs)]
