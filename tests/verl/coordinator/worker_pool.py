"""Workers in one process that sample from a table, and a store of the rows that they write. It needs no verl."""

import itertools
import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

import numpy as np

from apportion import AR3PO, Prompt, Rollout, collect
from apportion.verl.coordinator.messages import (
    RolloutTask,
    RowAddress,
    TaskResult,
    TrainerRequest,
    WrittenRollout,
    address_of,
    row_keys,
)
from apportion.verl.coordinator.service import Coordinator
from apportion.verl.coordinator.settings import VerlAllocation
from tests.rules import MAKE, in_tokens

ALLOCATORS = {
    **{name: MAKE[name] for name in ("vip", "hora", "dapo", "ar3po", "ttrl", "optpo")},
    "hora in tokens": lambda: in_tokens(MAKE["hora"]()),
    "ar3po reusing": lambda: AR3PO(stages=2, rollouts_per_stage=3, reuse="recompute"),
}
"""Makers of a rule of one round, of several, with fresh prompts, of independent prompts, of votes in one round and in
waves, in tokens, and of one that trains on rollouts of earlier steps. ``tests/golden`` has every rule."""


def allocation(allocator, baseline=None, **given):
    """Return the settings of a coordinator, without a deadline and retries."""
    own = {"allocator": allocator, "baseline": baseline, "deadline_seconds": math.inf, "retries": 0}
    return VerlAllocation(**own | given)


@dataclass(frozen=True)
class Table:
    """The outcome of rollout ``number`` of a prompt, whoever samples it and when.

    A share ``failing`` of the rollouts fails. The others have one or two rows.
    """

    success: tuple = (0.0, 0.02, 0.3, 0.5, 0.8, 0.97, 1.0)
    failing: float = 0.0
    seed: int = 0
    answers: int = 2

    def rollout(self, text, number, uid="", session=0):
        """Return the rollout of the prompt with ``text``, written under ``uid``; None if it fails."""
        q = int(text.split()[1])
        rng = np.random.default_rng([self.seed, q, number])
        fails, drawn, length = rng.random(3)
        if fails < self.failing:
            return None
        correct = bool(drawn < self.success[q % len(self.success)])
        answer = "right" if correct else f"wrong {rng.integers(self.answers)}"
        tokens = 1 + int(40 * length)
        lengths = (tokens,) if number % 3 else (tokens, 2)
        written = WrittenRollout(rng.bytes(8), uid, session, lengths, ({"text": text, "number": number},))
        norm = 1.0 if correct else 4.0
        return Rollout(correct, answer if number % 7 else None, completion=written, tokens=tokens, score_norm=norm)


def sampler(table, retries=0):
    """Return a sampler for ``collect`` that draws from ``table`` and tries failed rollouts again ``retries`` times."""
    drawn = Counter()

    def one(text, count):
        found = []
        for _ in range(1 + retries):
            numbers = range(drawn[text], drawn[text] + count - len(found))
            drawn[text] += len(numbers)
            found += [rollout for i in numbers if (rollout := table.rollout(text, i)) is not None]
        return found

    return lambda prompts, counts: [one(prompt.text, int(count)) for prompt, count in zip(prompts, counts, strict=True)]


def request_of(texts, step=1, workers=("a", "b")):
    """Return a request of prompts, whose uids consist of step and index."""
    prompts = [Prompt(text, data=RowAddress(f"h{step}-{i}", f"h{step}-{i}")) for i, text in enumerate(texts)]
    owners = itertools.islice(itertools.cycle(workers), len(prompts))
    return TrainerRequest(step, tuple(prompts), tuple(owners))


def texts(*numbers):
    return [f"prompt {number}" for number in numbers]


@dataclass
class ExtraPrompts:
    """The prompts from number 100 on, in order."""

    drawn: int = 0

    def draw(self, count, held):
        found = []
        while len(found) < count:
            text = f"prompt {100 + self.drawn}"
            self.drawn += 1
            if Prompt(text).id not in held:
                found.append(Prompt(text, data={"text": text}))
        return found


def watched(rule, **methods):
    """Return ``rule``, which also keeps the batches that it ``learned`` from, with other ``methods``."""
    learned, observe = [], rule.observe

    def kept(batch):
        learned.append(batch)
        observe(batch)

    for name, value in {"learned": learned, "observe": kept, **methods}.items():
        object.__setattr__(rule, name, value)
    return rule


@dataclass
class WorkerPool:
    """Keeps the tasks that it is ``sent`` until ``work``, and the keys of the ``rows`` that are written for each uid.

    The rows of a committed uid are those that are trained on.
    """

    table: Table = field(default_factory=Table)
    sent: dict = field(default_factory=dict)
    texts: dict = field(default_factory=dict)
    rows: dict = field(default_factory=lambda: defaultdict(set))
    cleared: dict = field(default_factory=dict)
    written: Counter = field(default_factory=Counter)
    committed: list = field(default_factory=list)
    handed_over: list = field(default_factory=list)
    arrived: Counter = field(default_factory=Counter)
    requested_rollouts: int = 0

    def send(self, worker, task):
        """Take a task. Each of its sessions writes a first row, whatever becomes of it."""
        assert worker
        if isinstance(task, RolloutTask):
            self.requested_rollouts += len(task.sessions)
            self.rows[task.uid].update(key for session in task.sessions for key in row_keys(task.uid, session, 1))
        self.sent[task.id] = (worker, task)

    def hand_over(self, worker, request, uids):
        assert worker
        self.handed_over.append((worker, tuple(uids)))

    def keep_rows(self, request):
        """Take the rows of ``request``, as the manager gives them to workers before it opens the round."""
        self.texts |= {address_of(prompt).uid: prompt.text for prompt in request.prompts}

    def carry_out(self, id):
        """Return the result of a task that was sent."""
        _, task = self.sent.pop(id)
        return self.sample(task) if isinstance(task, RolloutTask) else self.commit(task)

    def sample(self, task):
        """Return the rollouts of ``task``, and write their rows. One that fails has written a row before."""
        address = task.address
        text = self.texts[task.uid] if address.row is None else address.row["text"]
        found = []
        for session in task.sessions:
            rollout = self.table.rollout(text, session - address.first_session, task.uid, session)
            found += [] if rollout is None else [rollout]
            keys = row_keys(task.uid, session, 1) if rollout is None else rollout.completion.keys
            self.rows[task.uid].update(keys)
            self.written.update(keys)
        self.arrived[task.uid] += len(found)
        failures = ("it raised",) * (len(task.sessions) - len(found))
        return TaskResult(task.id, tuple(found), failures)

    def commit(self, commit):
        """Clear the rows of no group, and write reused ones."""
        self.committed.append(commit)
        rows = self.rows[commit.uid]
        self.cleared[commit.uid] = len(rows - commit.keys)
        again = {key for row in commit.rows if row.session is not None for key in row.keys(commit.uid)}
        assert not rows & again
        self.rows[commit.uid] = commit.keys
        return TaskResult(commit.id)


def make_coordinator(settings, pool, selection=None, refills=True, source=ExtraPrompts):
    """Return a coordinator whose tasks go through ``pool``. Extra prompts are those of ``source``."""
    if selection is not None:
        settings = replace(settings, selection=selection.selector)
    coordinator = Coordinator(settings, source and source(), selection, refills)
    coordinator.pool = pool
    return coordinator


def open_rounds(coordinator, *requests):
    """Open ``requests`` as the manager does."""
    for request in requests:
        coordinator.pool.keep_rows(request)
        coordinator.open(request)


def began(allocator, *numbers, table=Table(), workers=("a", "b"), **settings):
    """Return a coordinator that has begun a round of the prompts with these ``numbers``, its pool, and the request."""
    pool = WorkerPool(table)
    coordinator = make_coordinator(allocation(watched(allocator), **settings), pool)
    request = request_of(texts(*numbers), workers=workers)
    open_rounds(coordinator, request)
    return coordinator, pool, request


def collected(allocator, batch, request, table, retries=0):
    """Return the batch of the library's own loop on the same outcomes, with the extra prompts of ``batch``."""
    fresh = iter(batch.prompts[batch.started :])
    source = lambda count: list(itertools.islice(fresh, count))  # noqa: E731
    return collect(allocator, list(request.prompts), sampler(table, retries), source=source)


def work(coordinator, rng=None, only=lambda task: True):
    """Carry out the tasks that satisfy ``only`` until none is left.

    They go one by one, the oldest first. With ``rng`` any go next, and several results arrive together.
    """
    pool = coordinator.pool
    while ids := [id for id, (_, task) in pool.sent.items() if only(task)]:
        if rng is None:
            coordinator.receive([pool.carry_out(ids[0])])
        else:
            some = rng.choice(ids, size=int(rng.integers(1, len(ids) + 1)), replace=False)
            coordinator.receive([pool.carry_out(str(id)) for id in some])


def lose_worker(coordinator, worker, others):
    """Let ``worker`` die with all tasks that it was sent."""
    pool = coordinator.pool
    pool.sent = {id: sent for id, sent in pool.sent.items() if sent[0] != worker}
    coordinator.lose(worker, others)


def learned(coordinator):
    """Return the batches that a ``watched`` allocator learned from."""
    return coordinator.allocation.allocator.learned


def trained_on(commits):
    """Return the keys of all rows that are trained on."""
    return [key for commit in commits for group in commit.groups for row in group.rows for key in row.keys(commit.uid)]


def uids_of(*requests):
    return [address_of(prompt).uid for request in requests for prompt in request.prompts]


def check_rows(pool, commits, *requests):
    """Check that each uid is committed once, and that its rows are those that are trained on, each written once.

    verl's asynchronous trainers replace a failed prompt by another. One without requested rollouts has not failed.
    """
    assert sorted(commit.uid for commit in commits) == sorted(uids_of(*requests))
    assert all((commit.status == "failure") == (pool.arrived.get(commit.uid) == 0) for commit in commits)
    keys = trained_on(commits)
    assert len(keys) == len(set(keys))
    assert set(keys) == {key for uid in uids_of(*requests) for key in pool.rows[uid]}
    assert set(pool.written.values()) <= {1}
    assert all(key.startswith(f"{uid}_") for uid in pool.rows for key in pool.rows[uid])
