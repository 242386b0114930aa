"""Failing rollouts, workers and allocators: no round hangs, and every uid is committed once."""

import time
from collections import Counter
from dataclasses import replace

import pytest

from apportion import HORA, Rollout, Uniform
from apportion.verl.coordinator import service
from apportion.verl.coordinator.messages import CommitTask, RolloutTask, TaskResult
from tests.rules import MAKE
from tests.verl.coordinator.worker_pool import (
    ALLOCATORS,
    Table,
    WorkerPool,
    allocation,
    began,
    check_rows,
    collected,
    learned,
    lose_worker,
    make_coordinator,
    open_rounds,
    request_of,
    texts,
    watched,
    work,
)

FAILS = Table(failing=1.0)


def pass_time(coordinator, seconds):
    """Look for tasks whose time is over as if ``seconds`` had passed."""
    coordinator.expire(time.monotonic() + seconds)


@pytest.mark.parametrize("allocator", [MAKE["ar3po"], MAKE["hora"]])
def test_a_worker_that_does_not_answer_does_not_hang_a_round(allocator):
    """One worker says that its rollouts are late, another says nothing. Neither is asked again."""
    coordinator, pool, _ = began(allocator(), 0, 1, 2, table=Table(success=(1.0,)), deadline_seconds=10, retries=5)
    while any(isinstance(task, RolloutTask) for _, task in pool.sent.values()):
        for id, (_, task) in list(pool.sent.items()):
            if isinstance(task, RolloutTask) and task.uid == "h1-2":
                del pool.sent[id]
                continue
            result = pool.carry_out(id)
            if isinstance(task, RolloutTask) and task.uid == "h1-0":
                result = replace(result, rollouts=result.rollouts[:1], expired=True)
            coordinator.receive([result])
        pass_time(coordinator, 10 + service.GRACE_SECONDS)
    work(coordinator)
    coordinator.receive([TaskResult("h1-2:0", (Rollout(True),))])
    batch, metrics = learned(coordinator)[0], coordinator.metrics()
    assert pool.requested_rollouts == batch.asked.sum()
    assert 0 < len(batch.rollouts[0]) < batch.asked[0]
    assert (len(batch.rollouts[1]), len(batch.rollouts[2])) == (batch.asked[1], 0)
    assert metrics["retried"] == 0 < metrics["expired"]
    statuses = {commit.uid: commit.status for commit in pool.committed}
    assert statuses == {"h1-0": "finished", "h1-1": "finished", "h1-2": "failure"}
    assert not coordinator.waits


def test_a_worker_that_answers_in_time_is_not_given_up_and_restarted_rollouts_have_their_whole_time(monkeypatch):
    coordinator, pool, _ = began(Uniform(2), 0, 1, deadline_seconds=10)
    start = time.monotonic()
    pass_time(coordinator, 9 + service.GRACE_SECONDS)
    monkeypatch.setattr(time, "monotonic", lambda: start + 60)
    lose_worker(coordinator, "a", ["b"])
    coordinator.receive([pool.carry_out("h1-1:0")])
    coordinator.expire(start + 11 + service.GRACE_SECONDS)
    work(coordinator)
    assert [len(rollouts) for rollouts in learned(coordinator)[0].rollouts] == [2, 2]


def test_the_metrics_and_a_warning_say_how_many_attempts_failed_and_on_which_worker(caplog):
    coordinator, pool, _ = began(HORA(pre_rollouts=2, rollouts_per_prompt=4), 2, 3, 4, retries=1)
    coordinator.receive([TaskResult("h1-0:0", failures=("it raised",) * 2)])
    pool.sent.pop("h1-0:0")
    work(coordinator)
    found = coordinator.metrics()
    assert (found["errors"], found["retried"]) == (2, 2)
    assert "Attempts failed until step 1: 2 on a; the latest with it raised" in caplog.text


@pytest.mark.parametrize("other", ["b", "a", ""], ids=["another", "restarted", "none for a while"])
@pytest.mark.parametrize("name", sorted(ALLOCATORS))
def test_another_worker_does_the_tasks_of_a_dead_one(name, other):
    """Its rollouts and commits start again in the same sessions. Tasks wait if no worker lives, without a deadline.

    A commit sweeps its prompt's rows, because the dead one may have written some that it did not report.
    """
    table = Table(failing=0.2)
    coordinator, pool, request = began(ALLOCATORS[name](), *range(7), table=table, deadline_seconds=10)
    coordinator.receive([pool.carry_out(id) for id in list(pool.sent)[:3]])
    left = {task.uid for _, task in pool.sent.values()} & {f"h1-{i}" for i in range(0, 7, 2)}
    before = set(pool.sent)
    lose_worker(coordinator, "a", [other or "b"])
    assert set(pool.sent) == before and {worker for worker, _ in pool.sent.values()} == {other or "b", "b"}
    moved = {uid for worker, uids in pool.handed_over for uid in uids if worker == (other or "b")}
    assert left <= moved
    if not other:
        lose_worker(coordinator, "b", [])
        assert not pool.sent and set(coordinator.waits) == {""}
        pass_time(coordinator, 1000)
        coordinator.lose("", ["a"])
        assert {worker for worker, _ in pool.sent.values()} == {"a"}
        moved |= {uid for _, uids in pool.handed_over for uid in uids}
    work(coordinator)
    assert {commit.uid for commit in pool.committed if commit.swept} == moved
    (batch,) = learned(coordinator)
    assert batch == collected(ALLOCATORS[name](), batch, request, table)
    check_rows(pool, pool.committed, request)
    assert coordinator.metrics()["reassigned"] == sum(len(uids) for _, uids in pool.handed_over) > 0


def test_living_workers_share_the_rows_of_a_dead_one():
    coordinator, pool, whole = began(Uniform(), *range(6), workers=["a"])
    refills = [request_of(texts(0), step, ["a"]) for step in (2, 3, 4)]
    open_rounds(coordinator, *refills)
    lose_worker(coordinator, "a", ["b", "c", "d"])
    assert Counter(worker for worker, _ in pool.sent.values()) == Counter(b=3, c=3, d=3)
    assert Counter(worker for worker, uids in pool.handed_over for _ in uids) == Counter(b=3, c=3, d=3)
    work(coordinator)
    check_rows(pool, pool.committed, whole, *refills)


def test_many_failures_in_a_row_end_a_run_whose_prompts_are_replaced(monkeypatch):
    monkeypatch.setattr(service, "FAILED_IN_A_ROW", 20)
    coordinator, _, _ = began(Uniform(4), 0, 1, table=FAILS)
    work(coordinator)
    open_rounds(coordinator, request_of(texts(0, 1), 2))
    work(coordinator)
    coordinator.check()
    for step, table in ((3, Table()), (4, FAILS), (5, FAILS)):  # one that arrives begins the count again
        coordinator.check()
        coordinator.pool.table = table
        open_rounds(coordinator, request_of(texts(0, 1), step))
        work(coordinator)
    coordinator.check()
    open_rounds(coordinator, request_of(texts(0), 6))
    work(coordinator)
    with pytest.raises(RuntimeError, match="got none of the latest 20; the last failed with it raised"):
        coordinator.check()

    coordinator = make_coordinator(
        allocation(Uniform(20)), WorkerPool(FAILS), refills=False
    )  # is judged by whole rounds
    open_rounds(coordinator, request_of(texts(0, 1)))
    coordinator.receive([coordinator.pool.carry_out("h1-0:0")])
    coordinator.pool.table = Table()
    work(coordinator)
    coordinator.check()


@pytest.mark.parametrize("method", ["start", "plan", "groups", "metrics", "observe"])
@pytest.mark.parametrize("inner", [MAKE["uniform"], MAKE["hora"]])
def test_an_allocators_error_ends_the_run(caplog, method, inner):
    """No more is sent or committed after it, and nobody learns."""
    rule = inner()
    call = getattr(rule, method)

    def fail(given):
        if any(prompt.text == "prompt 9" for prompt in getattr(given, "prompts", given)):
            raise ValueError(f"{method} is wrong")
        return call(given)

    allocator = watched(rule, **{method: fail})
    coordinator = make_coordinator(allocation(allocator), pool := WorkerPool(Table(success=(0.5,))))
    open_rounds(coordinator, request_of(texts(0, 9, 2)))
    work(coordinator)
    for call_again in (coordinator.check, coordinator.metrics, lambda: coordinator.open(request_of(texts(5), 3))):
        with pytest.raises(RuntimeError, match=f"allocation failed at step 1: .*{method} is wrong"):
            call_again()
    assert not allocator.learned
    assert "h1-1" not in {commit.uid for commit in pool.committed} or method in ("metrics", "observe")
    assert "Traceback" in caplog.text


@pytest.mark.parametrize(("kind", "said"), [(RolloutTask, "allocation failed"), (CommitTask, "the commit of a prompt")])
def test_a_workers_error_ends_the_run(kind, said):
    coordinator, pool, _ = began(Uniform(), 0, 1, 2, table=Table(success=(0.5,)), retries=9)
    work(coordinator, only=lambda task: task.uid == "h1-1" and not isinstance(task, kind))
    (id,) = [id for id, (_, task) in pool.sent.items() if task.uid == "h1-1"]
    del pool.sent[id]
    coordinator.receive([TaskResult(id, error="the reward function is broken")])
    work(coordinator)
    with pytest.raises(RuntimeError, match=f"{said}.* at step 1: the reward function is broken"):
        coordinator.check()


def test_the_first_error_is_the_one_that_ends_the_run_and_results_after_it_leave_nothing_to_expire():
    """Else the log of a run that ends would show a second error, which says nothing."""
    coordinator, pool, _ = began(Uniform(), 0, 1, deadline_seconds=10)
    coordinator.fail("the first")
    coordinator.fail("the second")
    coordinator.receive([pool.carry_out(next(iter(pool.sent)))])
    pass_time(coordinator, 11 + service.GRACE_SECONDS)
    assert not coordinator.waits
    with pytest.raises(RuntimeError, match="the first"):
        coordinator.check()
