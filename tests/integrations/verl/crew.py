"""Workers of one process, which sample from a table, and a store of the rows that they write: verl's, without verl."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from apportion import AR3PO, Batch, Prompt, Rollout
from apportion.allocators import Allocator
from apportion.consensus import ConsensusAllocator
from apportion.integrations.verl.coordinator import Coordinator
from apportion.integrations.verl.journal import Journal
from apportion.integrations.verl.messages import (
    Dispatch,
    Order,
    Place,
    Publication,
    Report,
    Task,
    Written,
    place_of,
    row_keys,
)
from tests.contract.test_allocators import IN_TOKENS, MAKE, in_tokens

ALLOCATORS: dict[str, Callable[[], Allocator]] = {
    **MAKE,
    **{f"{name} in tokens": lambda name=name: in_tokens(MAKE[name]()) for name in IN_TOKENS},  # type: ignore[misc]
    "ar3po reusing": lambda: AR3PO(stages=2, rollouts_per_stage=3, reuse="recompute"),
}
"""Makers of the allocators of both registries, under all budgets, and of one that trains on earlier rollouts."""


@dataclass(frozen=True)
class Settings:
    """What the coordinator reads of an ``Allocation``, which cannot be made without verl."""

    allocator: Allocator
    deadline_seconds: float = math.inf
    retries: int = 0

    @property
    def label_free(self) -> bool:
        return isinstance(getattr(self.allocator, "inner", self.allocator), ConsensusAllocator)


@dataclass(frozen=True)
class Table:
    """What comes out of rollout ``number`` of a prompt, however, whenever and by whom it is sampled.

    A share ``failing`` raises instead, and each leaves one or two rows.
    """

    success: tuple[float, ...] = (0.0, 0.02, 0.3, 0.5, 0.8, 0.97, 1.0)
    failing: float = 0.0
    seed: int = 0
    answers: int = 2

    def rollout(self, text: str, number: int, host: str = "", session: int = 0) -> Rollout | None:
        """The rollout of the prompt with ``text``, written for ``host``; None where it fails."""
        q = int(text.split()[1])
        rng = np.random.default_rng([self.seed, q, number])
        fails, drawn, length = rng.random(3)
        if fails < self.failing:
            return None
        correct = bool(drawn < self.success[q % len(self.success)])
        answer = "right" if correct else f"wrong {rng.integers(self.answers)}"
        tokens = 1 + int(40 * length)
        lengths = (tokens,) if number % 3 else (tokens, 2)
        written = Written(rng.bytes(8), host, session, lengths, (text, number))
        return Rollout(correct, answer if number % 7 else None, completion=written, tokens=tokens)


def sampler(table: Table, retries: int = 0) -> Any:
    """``table`` for ``collect``: the next rollouts of each prompt, those that fail tried again ``retries`` times."""
    drawn: Counter[str] = Counter()

    def one(text: str, count: int) -> list[Rollout]:
        found: list[Rollout] = []
        for _ in range(1 + retries):
            numbers = range(drawn[text], drawn[text] + count - len(found))
            drawn[text] += len(numbers)
            found += [rollout for i in numbers if (rollout := table.rollout(text, i)) is not None]
        return found

    return lambda prompts, counts: [one(prompt.text, int(count)) for prompt, count in zip(prompts, counts, strict=True)]


def dispatch_of(texts: Sequence[str], step: int = 1, workers: Sequence[str] = ("a", "b")) -> Dispatch:
    """A dispatch of prompts, the hosts of which are named by step and place."""
    prompts = [Prompt(text, data=Place(f"h{step}-{i}", f"h{step}-{i}")) for i, text in enumerate(texts)]
    owners = itertools.islice(itertools.cycle(workers), len(prompts))
    return Dispatch(step, tuple(prompts), tuple(owners))


def texts(*numbers: int) -> list[str]:
    return [f"prompt {number}" for number in numbers]


@dataclass
class Guests:
    """Prompts from number 100 on, in order."""

    drawn: int = 0

    def draw(self, count: int, held: set[str]) -> list[Prompt]:
        found: list[Prompt] = []
        while len(found) < count:
            text = f"prompt {100 + self.drawn}"
            self.drawn += 1
            if Prompt(text).id not in held:
                found.append(Prompt(text, data={"text": text}))
        return found


class Watched:
    """``inner``, whose batches can be read afterwards: those that it ``learnt`` from, in order."""

    def __init__(self, inner: Allocator) -> None:
        self.inner = inner
        self.learnt: list[Batch] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def observe(self, batch: Batch) -> None:
        self.learnt.append(batch)
        self.inner.observe(batch)


@dataclass
class Crew:
    """Keeps what it is ``sent`` until it is told to work, and the ``rows`` of the hosts as they are written.

    Rows of a host are there under keys; those of a host that was published are what is trained on.
    """

    table: Table = field(default_factory=Table)
    sent: dict[str, tuple[str, Task]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    rows: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    written: Counter[str] = field(default_factory=Counter)
    published: list[Publication] = field(default_factory=list)
    moves: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    kept: set[str] = field(default_factory=set)
    ordered: int = 0
    at_hand: bool = True

    def send(self, worker: str, task: Task) -> None:
        assert worker or isinstance(task, Publication)
        self.ordered += len(task.sessions) if isinstance(task, Order) else 0
        self.sent[task.id] = (worker, task)

    def move(self, worker: str, dispatch: Dispatch, hosts: Sequence[str]) -> bool:
        if self.at_hand:
            self.moves.append((worker, tuple(hosts)))
        return self.at_hand

    def forget(self, dispatch: Dispatch) -> None:
        self.kept.discard(dispatch.name)

    def keep(self, dispatch: Dispatch) -> None:
        """Takes the rows of ``dispatch``, as the manager hands them to workers before it opens the round."""
        self.texts |= {place_of(prompt).host: prompt.text for prompt in dispatch.prompts}
        self.kept.add(dispatch.name)

    def carry_out(self, id: str) -> Report:
        """What becomes of a task that was sent."""
        _, task = self.sent.pop(id)
        return self.sampled(task) if isinstance(task, Order) else self.told(task)

    def sampled(self, order: Order) -> Report:
        place = order.place
        text = self.texts[place.host] if place.row is None else place.row["text"]
        found = []
        for session in order.sessions:
            rollout = self.table.rollout(text, session - place.offset, place.host, session)
            if rollout is not None:
                found.append(rollout)
                self.rows[place.host].update(rollout.completion.keys)
                self.written.update(rollout.completion.keys)
        failures = ("it raised",) * (len(order.sessions) - len(found))
        return Report(order.id, tuple(found), failures)

    def told(self, publication: Publication) -> Report:
        self.published.append(publication)
        rows = self.rows[publication.host]
        rows.difference_update(publication.cleared)
        for group in publication.groups:
            for row in group.rows:
                if row.session is not None:
                    again = row_keys(publication.host, row.session, len(row.written.lengths))
                    assert not rows & set(again)
                    rows.update(again)
        return Report(publication.id)


@contextmanager
def coordinators(folder: Path) -> Iterator[Callable[..., Coordinator]]:
    """A maker of coordinators with journals in ``folder``, which are closed at the end."""
    with ExitStack() as stack:

        def made(settings: Settings, crew: Crew, name: str = "journal", kind: type[Journal] = Journal) -> Coordinator:
            journal = kind(folder / name)
            stack.callback(journal.close)
            return Coordinator(settings, crew, journal, Guests())  # type: ignore[arg-type]

        yield made


def opened(coordinator: Coordinator, *dispatches: Dispatch) -> None:
    """Opens ``dispatches`` as the manager does."""
    for dispatch in dispatches:
        coordinator.crew.keep(dispatch)  # type: ignore[attr-defined]
        coordinator.open(dispatch)


def work(coordinator: Coordinator, order: np.random.Generator | None = None, only: Any = lambda task: True) -> None:
    """Carries out tasks that ``only`` takes until none is left: the oldest first, or any, some reports together."""
    crew: Crew = coordinator.crew  # type: ignore[assignment]
    while ids := [id for id, (_, task) in crew.sent.items() if only(task)]:
        if order is None:
            coordinator.report([crew.carry_out(ids[0])])
        else:
            some = order.choice(ids, size=int(order.integers(1, len(ids) + 1)), replace=False)
            coordinator.report([crew.carry_out(str(id)) for id in some])


def died(coordinator: Coordinator, worker: str, others: Sequence[str]) -> None:
    """``worker`` dies with all that it was sent."""
    crew: Crew = coordinator.crew  # type: ignore[assignment]
    crew.sent = {id: sent for id, sent in crew.sent.items() if sent[0] != worker}
    coordinator.lost(worker, others)


def trained_on(publications: Sequence[Publication]) -> list[str]:
    """The keys of all rows that are trained on."""
    keys = []
    for publication in publications:
        for group in publication.groups:
            for row in group.rows:
                session = row.written.session if row.session is None else row.session
                keys += row_keys(publication.host, session, len(row.written.lengths))
    return keys


def batch_of(watched: Watched, dispatch: Dispatch) -> Batch:
    """The batch that was learnt from ``dispatch``."""
    first = place_of(dispatch.prompts[0]).name
    (found,) = [batch for batch in watched.learnt if place_of(batch.prompts[0]).name == first]
    return found


def hosts_of(*dispatches: Dispatch) -> list[str]:
    return [place_of(prompt).host for dispatch in dispatches for prompt in dispatch.prompts]


def check_rows(crew: Crew, publications: Sequence[Publication], *dispatches: Dispatch) -> None:
    """Each host is published once; its rows are those that are trained on, written once, and no others."""
    assert sorted(publication.host for publication in publications) == sorted(hosts_of(*dispatches))
    keys = trained_on(publications)
    assert len(keys) == len(set(keys))
    assert set(keys) == {key for host in hosts_of(*dispatches) for key in crew.rows[host]}
    assert set(crew.written.values()) <= {1}
    assert all(key.startswith(f"{host}_") for host in crew.rows for key in crew.rows[host])
