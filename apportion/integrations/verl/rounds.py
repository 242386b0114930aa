"""A dispatch under way, as plain data: a coordinator saves it as it stands, and goes on with it after a restart."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from apportion.integrations.verl.messages import Dispatch, Task, place_of
from apportion.types import Batch, Group, Plan, Rollout


@dataclass(eq=False)
class Part:
    """Prompts that are planned together: one of a separable allocator's, else all of the round.

    ``plan`` is the wave under way: ``awaited`` of its prompts are not done, and what ``arrived`` of it is by place in
    the batch. ``groups`` are there when nothing more is planned.
    """

    batch: Batch
    hosts: tuple[str, ...]
    plan: Plan = field(default_factory=lambda: Plan(np.zeros(0, np.int64)))
    awaited: int = 0
    arrived: dict[int, list[Rollout]] = field(default_factory=dict)
    groups: tuple[Group, ...] | None = None

    def begin(self, plan: Plan) -> list[int]:
        """Begins the wave of ``plan``; the places in the batch of which rollouts are wanted."""
        places: list[int] = plan.counts.nonzero()[0].tolist()
        self.plan, self.awaited, self.arrived = plan, len(places), {q: [] for q in places}
        return places

    def end(self) -> None:
        """Takes the wave into the batch."""
        self.batch = self.batch.add(self.plan, [self.arrived.get(q, ()) for q in range(len(self.batch.prompts))])

    def answers(self, place: int) -> tuple[str, ...]:
        """The distinct answers to the prompt at ``place`` so far, in the order in which they came."""
        rollouts = (*self.batch.rollouts[place], *self.arrived.get(place, ()))
        return tuple(dict.fromkeys(rollout.answer for rollout in rollouts if rollout.answer is not None))


@dataclass(eq=False)
class Round:
    """A dispatch under way.

    ``worker`` is who holds the rows of each host that the trainer waits for, "" nobody. ``going`` parts are not done.
    Parts that are and have nothing to train on are ``held`` until ``trains``: something else of the round is. When all
    is learnt, or has ``failed``, the round is ``closed``, and over when the last host is published.

    Waves and sessions are counted by the name of a ``Place``, guests by their host.
    """

    dispatch: Dispatch
    worker: dict[str, str]
    parts: list[Part] = field(default_factory=list)
    going: int = 0
    held: list[Part] = field(default_factory=list)
    trains: bool = False
    closed: bool = False
    failed: bool = False
    said: dict[str, float] = field(default_factory=dict)
    waves: Counter[str] = field(default_factory=Counter)
    sessions: Counter[str] = field(default_factory=Counter)
    guests: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, dispatch: Dispatch) -> Round:
        """The round of ``dispatch``, of which nothing is planned yet."""
        hosts = (place_of(prompt).host for prompt in dispatch.prompts)
        return cls(dispatch, dict(zip(hosts, dispatch.workers, strict=True)))

    @property
    def batch(self) -> Batch:
        """All of it, in the order in which it was dispatched."""
        return self.parts[0].batch if len(self.parts) == 1 else Batch.concatenate([part.batch for part in self.parts])

    @property
    def groups(self) -> list[Group]:
        """The groups of the parts that are done."""
        return [group for part in self.parts for group in part.groups or ()]

    @property
    def published(self) -> list[Batch]:
        """The batches of the parts of which the trainer has all groups."""
        return [part.batch for part in self.parts if not any(host in self.worker for host in part.hosts)]


@dataclass(eq=False)
class Asked:
    """A task under way; of an order also its ``part``, its ``place`` there, and how often it was tried before."""

    round: Round
    task: Task
    part: Part | None = None
    place: int = 0
    attempt: int = 0
