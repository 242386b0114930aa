"""What the coordinator and the workers tell each other. All frozen, all plain data, small enough to be journaled.

A *host* is a row that the trainer dispatched: its uid begins the keys of all rows that are written for it. Nearly
always it is one prompt, of the same name. Prompts that an allocator draws beyond those of the trainer are guests: their
rows are written for a host of the same round, so that the trainer finds exactly the rows that it asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from apportion.types import Prompt, Rollout

Status = Literal["finished", "failure"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a prompt's rollouts are written: ``Prompt.data`` of every prompt in a round.

    ``name`` is that of its group, ``host`` whose rows they are, ``offset`` its first session, and ``row`` the data of a
    guest.
    """

    name: str
    host: str
    offset: int = 0
    row: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Dispatch:
    """The rows that the trainer dispatched together: one round of allocation, with a budget of its own.

    ``workers`` [P] are the names of those that hold the rows of ``prompts`` [P], whose ``data`` is a ``Place``.
    """

    step: int
    prompts: tuple[Prompt, ...]
    workers: tuple[str, ...]

    @property
    def name(self) -> str:
        """That of its first host, which no other dispatch has."""
        return place_of(self.prompts[0]).host if self.prompts else ""


@dataclass(frozen=True, slots=True)
class Order:
    """Rollouts of one prompt, one a session; those that are not there after ``seconds`` are given up."""

    id: str
    place: Place
    sessions: tuple[int, ...]
    seconds: float | None = None
    answers: tuple[str, ...] = ()
    """Those that the prompt has so far, in the words in which each was first given."""

    @property
    def host(self) -> str:
        """Whose rows its rollouts are written as."""
        return self.place.host


@dataclass(frozen=True, slots=True)
class Report:
    """What became of the task ``id``: the rollouts that arrived, and why others did not.

    ``expired`` says that some were given up at the deadline, ``error`` what is wrong with the set-up, so that trying
    again is of no use.
    """

    id: str
    rollouts: tuple[Rollout, ...] = ()
    failures: tuple[str, ...] = ()
    expired: bool = False
    error: str | None = None


@dataclass(frozen=True)  # there are many, and with slots pickling takes four times as long
class Written:
    """A rollout's completion: where its rows lie in the TransferQueue. Equal where the tokens are.

    ``lengths`` [O] are those of the responses of the O outputs of its agent loop, nearly always one. ``outputs`` is
    there where a later step may train on them again.
    """

    digest: bytes
    host: str = field(compare=False)
    session: int = field(compare=False)
    lengths: tuple[int, ...] = field(compare=False)
    outputs: Any = field(default=None, compare=False, repr=False)

    @property
    def keys(self) -> list[str]:
        """The rows' keys, as verl writes them: ``{uid}_{session}_{output}``."""
        return row_keys(self.host, self.session, len(self.lengths))


@dataclass(frozen=True, slots=True)
class Row:
    """A rollout that is trained on: its ``place`` in the group; reused ones are written anew as ``session``."""

    place: int
    written: Written
    session: int | None = None


@dataclass(frozen=True, slots=True)
class TrainedGroup:
    """The columns [G] of a group, of all its rollouts, and the ``rows`` that are trained on.

    ``rewarded`` says that the rewards were given by the allocator, and take the place of what the rows were scored.
    """

    name: str
    rewards: tuple[float, ...]
    tokens: tuple[int, ...]
    rounds: tuple[int, ...]
    rows: tuple[Row, ...]
    rewarded: bool = False


@dataclass(frozen=True, slots=True)
class Publication:
    """A host's groups, for the trainer to find; ``cleared`` are keys of rows that no group trains on."""

    id: str
    host: str
    groups: tuple[TrainedGroup, ...]
    cleared: tuple[str, ...]
    status: Status


Task = Order | Publication


@dataclass(frozen=True, slots=True)
class Moved:
    """The rows of ``hosts`` are held by ``worker`` from now on; "" is nobody."""

    hosts: tuple[str, ...]
    worker: str


@dataclass(frozen=True, slots=True)
class Logged:
    """The trainer has logged the rounds that were over."""


def place_of(prompt: Prompt) -> Place:
    """Where the rollouts of a prompt of a round are written."""
    place: Place = prompt.data
    return place


def row_keys(host: str, session: int, outputs: int) -> list[str]:
    """Keys of the rows of a session.

    >>> row_keys("b2f1", 3, 2)
    ['b2f1_3_0', 'b2f1_3_1']
    """
    return [f"{host}_{session}_{output}" for output in range(outputs)]
