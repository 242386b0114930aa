"""Failing rollouts, workers and allocators: no round hangs, and every uid is committed once."""

import asyncio
import itertools
from collections import Counter
from dataclasses import replace

import pytest

from apportion import AR3PO, Rollout, Uniform, collect
from apportion.verl.coordinator import planner, service
from apportion.verl.coordinator.messages import CommitTask, RolloutTask, TaskResult, address_of
from tests.rules import MAKE
from tests.verl.coordinator.worker_pool import (
    ALLOCATORS,
    Settings,
    Table,
    Watched,
    WorkerPool,
    check_rows,
    coordinator_factory,
    lose_worker,
    open_rounds,
    request_of,
    sampler,
    texts,
    uids_of,
    work,
)


@pytest.fixture(params=sorted(ALLOCATORS))
def make(request):
    """Return a function that makes a new allocator."""
    return ALLOCATORS[request.param]


@pytest.fixture
def make_coordinator(tmp_path):
    with coordinator_factory(tmp_path) as make:
        yield make


@pytest.mark.parametrize("allocator", [MAKE["ar3po"], MAKE["hora"]])
def test_a_silent_worker_does_not_hang_a_round(make_coordinator, monkeypatch, allocator):
    """One worker says that its rollouts are late, another says nothing. Neither is asked again."""
    monkeypatch.setattr(service, "GRACE_SECONDS", 0.02)
    watched, pool = Watched(allocator()), WorkerPool(Table(success=(1.0,)))
    request = request_of(texts(0, 1, 2))

    async def scenario():
        coordinator = make_coordinator(Settings(watched, deadline_seconds=0.02, retries=5), pool)
        open_rounds(coordinator, request)
        while any(isinstance(task, RolloutTask) for _, task in pool.sent.values()):
            for id, (_, task) in list(pool.sent.items()):
                result = pool.carry_out(id)
                if isinstance(task, RolloutTask) and task.uid == "h1-0":
                    coordinator.receive([replace(result, rollouts=result.rollouts[:1], expired=True)])
                elif isinstance(task, CommitTask) or task.uid == "h1-1":
                    coordinator.receive([result])
            await asyncio.sleep(0.06)
        work(coordinator)
        coordinator.receive([TaskResult("h1-2:1", (Rollout(True),))])
        return coordinator

    coordinator = asyncio.run(asyncio.wait_for(scenario(), 20))
    batch, metrics = watched.learned[0], coordinator.metrics()
    assert pool.requested_rollouts == batch.asked.sum()
    assert 0 < len(batch.rollouts[0]) < batch.asked[0]
    assert (len(batch.rollouts[1]), len(batch.rollouts[2])) == (batch.asked[1], 0)
    assert metrics["retried"] == 0 < metrics["expired"]
    assert {commit.uid: commit.status for commit in pool.committed} == {
        "h1-0": "finished",
        "h1-1": "finished",
        "h1-2": "failure",
    }
    assert not coordinator._timers


def test_a_worker_that_answers_in_time_is_not_given_up(make_coordinator, monkeypatch):
    monkeypatch.setattr(service, "GRACE_SECONDS", 0.01)
    watched, pool = Watched(Uniform(rollouts_per_prompt=2)), WorkerPool()

    async def scenario():
        coordinator = make_coordinator(Settings(watched, deadline_seconds=0.01), pool)
        open_rounds(coordinator, request_of(texts(0, 1)))
        coordinator.receive([pool.carry_out(id) for id in list(pool.sent)])
        await asyncio.sleep(0.06)
        work(coordinator)

    asyncio.run(scenario())
    assert [len(rollouts) for rollouts in watched.learned[0].rollouts] == [2, 2]


def test_restarted_rollouts_get_their_whole_time_again(make_coordinator, monkeypatch):
    monkeypatch.setattr(service, "GRACE_SECONDS", 0.3)
    watched, pool = Watched(Uniform(rollouts_per_prompt=2)), WorkerPool()

    async def scenario():
        coordinator = make_coordinator(Settings(watched, deadline_seconds=0.3), pool)
        open_rounds(coordinator, request_of(texts(0), workers=["a"]))
        await asyncio.sleep(0.4)
        lose_worker(coordinator, "a", ["b"])
        await asyncio.sleep(0.4)
        work(coordinator)

    asyncio.run(scenario())
    assert len(watched.learned[0].rollouts[0]) == 2


@pytest.mark.parametrize("late", [0, 3, 7])
def test_another_worker_does_the_tasks_of_a_dead_one(make, make_coordinator, late):
    """Its rollouts start again in the same sessions. ``late`` results arrived before it died."""
    watched, pool = Watched(make()), WorkerPool(Table(failing=0.2))
    coordinator = make_coordinator(Settings(watched), pool)
    request = request_of(texts(0, 1, 2, 3, 4, 5, 6))
    open_rounds(coordinator, request)
    coordinator.receive([pool.carry_out(id) for id in list(pool.sent)[:late]])
    left = {task.uid for _, task in pool.sent.values()} & {f"h1-{i}" for i in range(0, 7, 2)}
    before = set(pool.sent)
    lose_worker(coordinator, "a", ["b"])
    assert set(pool.sent) == before
    assert {worker for worker, _ in pool.sent.values()} == {"b"}
    assert left <= {uid for worker, uids in pool.handed_over for uid in uids if worker == "b"}
    work(coordinator)
    fresh = iter(watched.learned[0].prompts[watched.learned[0].started :])
    draw = lambda count: list(itertools.islice(fresh, count))  # noqa: E731
    assert watched.learned[0] == collect(make(), list(request.prompts), sampler(pool.table), source=draw)
    check_rows(pool, pool.committed, request)
    assert coordinator.metrics()["reassigned"] == sum(len(uids) for _, uids in pool.handed_over) > 0


def test_living_workers_share_the_rows_of_a_dead_one(make_coordinator):
    pool = WorkerPool()
    coordinator = make_coordinator(Settings(Uniform()), pool)
    whole = request_of(texts(*range(6)), 1, ["a"])
    refills = [request_of(texts(0), step, ["a"]) for step in (2, 3, 4)]
    open_rounds(coordinator, whole, *refills)
    lose_worker(coordinator, "a", ["b", "c", "d"])
    assert Counter(worker for worker, _ in pool.sent.values()) == Counter(b=3, c=3, d=3)
    assert Counter(worker for worker, uids in pool.handed_over for _ in uids) == Counter(b=3, c=3, d=3)
    work(coordinator)
    check_rows(pool, pool.committed, whole, *refills)


def test_a_restarted_worker_continues_with_its_rows(make_coordinator):
    watched, pool = Watched(Uniform()), WorkerPool()
    coordinator = make_coordinator(Settings(watched), pool)
    request = request_of(texts(0, 1, 2))
    open_rounds(coordinator, request)
    before = dict(pool.sent)
    lose_worker(coordinator, "a", ["a"])
    assert pool.sent == before
    assert pool.handed_over == [("a", ("h1-0", "h1-2"))]
    work(coordinator)
    check_rows(pool, pool.committed, request)


@pytest.mark.parametrize("others", [[], ["b"]])
def test_rollouts_without_rows_have_failed(make, make_coordinator, others):
    """No worker lives, or the rows are gone. Their uids are committed all the same."""
    watched, pool = Watched(make()), WorkerPool(Table(success=(0.5,)), available=False)
    coordinator = make_coordinator(Settings(watched, retries=3), pool)
    request = request_of(texts(0, 1, 2, 3, 4))
    open_rounds(coordinator, request)
    coordinator.receive([pool.carry_out(next(iter(pool.sent)))])
    lose_worker(coordinator, "a", others)
    if not others:
        lose_worker(coordinator, "b", [])
    tasks = [sent for sent in pool.sent.values() if isinstance(sent[1], RolloutTask)]
    assert all(worker == "b" and task.uid in ("h1-1", "h1-3") for worker, task in tasks)
    assert others or not tasks
    work(coordinator)
    check_rows(pool, pool.committed, request)
    batch, gone = watched.learned[0], {"h1-2", "h1-4"} if others else set(uids_of(request)[1:])
    lost = [q for q, prompt in enumerate(batch.prompts) if address_of(prompt).uid in gone]
    assert not any(batch.rollouts[q] for q in lost)
    assert batch.asked[lost].sum() > 0
    assert coordinator.metrics()["retried"] == 0


def test_an_allocator_may_plan_many_waves_without_workers(make_coordinator):
    watched, pool = Watched(MAKE["reinforce_ada"]()), WorkerPool()
    watched.inner = replace(watched.inner, rollouts_per_round=1, rounds=5000)
    coordinator = make_coordinator(Settings(watched), pool)
    open_rounds(coordinator, request_of(texts(0), workers=["a"]))
    lose_worker(coordinator, "a", [])
    work(coordinator)
    assert watched.learned[0].asked.tolist() == [5000]
    assert [commit.status for commit in pool.committed] == ["failure"]


@pytest.mark.parametrize("available", [True, False])
def test_another_worker_does_the_commit_of_a_dead_one(make_coordinator, available):
    """Reused rollouts can only be written with the row of their uid."""
    pool = WorkerPool(Table(success=(1.0,)), available=available)
    coordinator = make_coordinator(Settings(AR3PO(stages=1, reuse="recompute")), pool)
    open_rounds(coordinator, request_of(texts(0, 1), 1))
    work(coordinator)
    pool.table, pool.committed = Table(success=(0.0,), seed=1), []
    request = request_of(texts(0, 1), 2)
    open_rounds(coordinator, request)
    work(coordinator, only=lambda task: isinstance(task, RolloutTask))
    assert [worker for worker, _ in pool.sent.values()] == ["a", "b"]
    lose_worker(coordinator, "a", ["b"])
    assert sorted(worker for worker, _ in pool.sent.values()) == (["b", "b"] if available else ["", "b"])
    work(coordinator)
    check_rows(pool, pool.committed, request)
    again = {p.uid: sum(row.session is not None for g in p.groups for row in g.rows) for p in pool.committed}
    assert again == {"h2-0": int(available), "h2-1": 1}


class Raising(Watched):
    """An allocator whose ``method`` raises for a prompt with ``text``."""

    def __init__(self, inner, method, text):
        super().__init__(inner)
        self.method, self.text = method, text

    def _check(self, method, prompts):
        if method == self.method and any(prompt.text == self.text for prompt in prompts):
            raise ValueError(f"{method} is wrong")

    def _checked(self, method, given):
        self._check(method, given if method == "start" else given.prompts)
        return getattr(self.inner, method)(given)

    def check_rewards(self, batch):
        """Replace the function that the planner calls."""
        self._check("check_rewards", batch.prompts)

    def start(self, prompts):
        return self._checked("start", prompts)

    def plan(self, batch):
        return self._checked("plan", batch)

    def groups(self, batch):
        return self._checked("groups", batch)

    def metrics(self, batch):
        return self._checked("metrics", batch)

    def observe(self, batch):
        self._checked("observe", batch)
        self.learned.append(batch)


@pytest.mark.parametrize("method", ["start", "plan", "check_rewards", "groups", "metrics", "observe"])
@pytest.mark.parametrize("inner", [MAKE["uniform"], MAKE["hora"]])
def test_an_allocators_error_ends_its_round_and_no_other(make_coordinator, monkeypatch, caplog, method, inner):
    monkeypatch.setattr(planner, "check_rewards", Raising.check_rewards)
    watched, pool = Raising(inner(), method, "prompt 9"), WorkerPool(Table(success=(0.5,)))
    coordinator = make_coordinator(Settings(watched), pool)
    bad, good = request_of(texts(0, 9, 2), 1), request_of(texts(3, 4), 2)
    open_rounds(coordinator, good)
    pool.keep_rows(bad)
    coordinator.open(bad)
    work(coordinator)
    for metrics in (coordinator.metrics, lambda: coordinator.open(request_of(texts(5), 3))):
        with pytest.raises(RuntimeError, match=f"allocation failed at step 1: {method} is wrong"):
            metrics()
    assert watched.learned == [collect(inner(), list(good.prompts), sampler(pool.table))]
    status = {commit.uid: commit.status for commit in pool.committed}
    assert len(pool.committed) == len(status) == 5
    assert (status["h2-0"], status["h2-1"]) == ("finished", "finished")
    failed = [uid for uid in uids_of(bad) if status[uid] == "failure"]
    assert failed == (uids_of(bad) if method in ("start", "plan") else failed)
    assert failed and ("h1-1" in failed or method in ("metrics", "observe"))
    assert not pool.held_requests
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("kind", [RolloutTask, CommitTask])
def test_a_workers_error_ends_the_round(make_coordinator, kind):
    watched, pool = Watched(MAKE["uniform"]()), WorkerPool(Table(success=(0.5,)))
    coordinator = make_coordinator(Settings(watched, retries=9), pool)
    bad, good = request_of(texts(0, 1, 2), 1), request_of(texts(3, 4), 2)
    open_rounds(coordinator, good, bad)
    work(coordinator, only=lambda task: task.uid == "h1-1" and not isinstance(task, kind))
    (id,) = [id for id, (_, task) in pool.sent.items() if task.uid == "h1-1"]
    del pool.sent[id]
    coordinator.receive([TaskResult(id, error="the reward function is broken")])
    work(coordinator)
    with pytest.raises(RuntimeError, match="step 1: the reward function is broken"):
        coordinator.metrics()
    assert len(watched.learned) == 1
    status = {commit.uid: commit.status for commit in pool.committed}
    failing = {"h1-0", "h1-1", "h1-2"}
    assert status == {uid: "failure" if uid in failing else "finished" for uid in uids_of(bad, good)}


def test_an_error_of_a_failed_commit_is_raised_by_the_next_call(make_coordinator):
    """Nothing can be committed, not even the failure."""
    pool = WorkerPool()
    coordinator = make_coordinator(Settings(Uniform()), pool)
    open_rounds(coordinator, request_of(texts(0)))
    work(coordinator, only=lambda task: isinstance(task, RolloutTask))
    for id in ("h1-0:commit", "h1-0:failed"):
        del pool.sent[id]
        coordinator.receive([TaskResult(id, error="the queue is gone")])
    assert not pool.sent
    with pytest.raises(RuntimeError, match="the queue is gone"):
        coordinator.metrics()
