"""Prompts that share a budget are committed as soon as nothing can change them, with the same result as at the end."""

import pickle
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion import DAPO, HORA, Uniform
from apportion.baselines import Optimal
from apportion.verl.coordinator.messages import RolloutTask, TrainerRequest
from tests.verl.coordinator.test_service import Graded
from tests.verl.coordinator.worker_pool import (
    ALLOCATORS,
    Settings,
    Table,
    Watched,
    WorkerPool,
    began,
    check_rows,
    learned,
    make_coordinator,
    open_rounds,
    request_of,
    texts,
    work,
)

JOINT = {name: make for name, make in ALLOCATORS.items() if not make().separable} | {
    "dapo without draws": lambda: DAPO(rollouts_per_prompt=3, max_draws=1),
    "dapo of a few": lambda: DAPO(rollouts_per_prompt=3, target=2, max_draws=1),
}
"""Makers of the rules that plan prompts together."""

HALF = Table(success=(0.5,))


class AtTheEnd(Watched):
    """The same rule without promises, so that all prompts are committed at the end of the round."""

    def final(self, batch, plan):
        return np.zeros(len(batch.prompts), bool)


def by_uid(commits):
    found = {commit.uid: commit for commit in commits}
    assert len(found) == len(commits)
    return found


@settings(max_examples=150)
@given(kind=st.sampled_from(sorted(JOINT)), seed=st.integers(0, 10**6), retries=st.integers(0, 1))
def test_early_commits_change_nothing_that_is_trained_on_learned_or_logged(kind, seed, retries):
    runs = []
    for kind_of in (Watched, AtTheEnd):
        allocator = kind_of(JOINT[kind]())
        history = Optimal() if allocator.needs.labels else None
        pool = WorkerPool(Table(failing=0.2, seed=seed))
        runs.append(make_coordinator(Settings(allocator, history, retries=retries), pool))
    rng = np.random.default_rng(seed)
    for step in range(1, 4):
        numbers = rng.choice(7, size=int(rng.integers(1, 7)), replace=False)
        request = request_of(texts(*numbers), step)
        for coordinator in runs:
            coordinator.pool.committed = []
            open_rounds(coordinator, request)
            work(coordinator, rng)  # each in another order
            check_rows(coordinator.pool, coordinator.pool.committed, request)
        early, end = runs
        assert by_uid(early.pool.committed) == by_uid(end.pool.committed)
        assert early.allocation.allocator.learned == end.allocation.allocator.learned
        assert early.metrics() == end.metrics() | {"barrier_seconds": mock.ANY}
        np.testing.assert_equal(early.state(), end.state())
    assert early.pool.rows == end.pool.rows


@pytest.mark.parametrize("kind", ["hora", "dapo without draws", "vip in tokens"])
def test_a_straggler_in_the_last_wave_delays_no_other_prompt(kind):
    """The allocator learns before the trainer has the last prompt."""
    coordinator, pool, request = began(JOINT[kind](), 0, 1, 2, 3, 4, 5, table=HALF)
    straggler = ""
    while not learned(coordinator) and len(pool.committed) < 4:
        waves = {task.id.split(":")[0]: task for _, task in pool.sent.values() if isinstance(task, RolloutTask)}
        straggler = sorted(waves)[-1] if waves else straggler
        others = [id for id in pool.sent if not id.startswith(f"{straggler}:")]
        coordinator.receive([pool.carry_out(id) for id in others or list(pool.sent)[:1]])
    work(coordinator, only=lambda task: not task.id.startswith(f"{straggler}:"))
    assert {id.split(":")[0] for id in pool.sent} == {straggler}
    assert len(pool.committed) >= 4 and not learned(coordinator)
    work(coordinator)
    check_rows(pool, pool.committed, request)
    assert len(learned(coordinator)) == 1


def test_prompts_that_get_nothing_of_the_last_wave_are_committed_when_it_begins():
    """With 13 rollouts for 6 prompts, HORA gives one prompt a second rollout and 5 none after 2 for each."""
    coordinator, pool, _ = began(HORA(pre_rollouts=2, budget=13), 0, 1, 2, 3, 4, 5, table=Table(success=(1.0,)))
    coordinator.receive([pool.carry_out(id) for id in list(pool.sent)])
    (running,) = [task for _, task in pool.sent.values() if isinstance(task, RolloutTask)]
    work(coordinator, only=lambda task: not isinstance(task, RolloutTask))
    assert len(pool.committed) == 5 and running.uid not in by_uid(pool.committed)


def test_final_prompts_without_a_row_wait_for_one_with_something_to_train_on():
    coordinator, pool, request = began(JOINT["vip"](), 0, 1, 2, table=HALF)
    first, second, third = pool.sent
    pool.table = Table(failing=1.0)
    coordinator.receive([pool.carry_out(first)])
    assert not [id for id in pool.sent if id.endswith("commit")]
    pool.table = HALF
    coordinator.receive([pool.carry_out(second)])
    work(coordinator, only=lambda task: not isinstance(task, RolloutTask))
    found = by_uid(pool.committed)
    assert (found["h1-0"].status, found["h1-1"].status) == ("failure", "finished") and third in pool.sent
    work(coordinator)
    check_rows(pool, pool.committed, request)


@pytest.mark.parametrize("kind", ["vip", "even in tokens", "knapsack"])
def test_a_checkpoint_within_a_round_has_learned_what_was_sent_to_be_committed(kind):
    """verl may request such a prompt again. It is then sampled again, and not learned from twice."""
    whole, _, request = began(JOINT[kind](), 0, 1, 2, 3, 4, 5, table=HALF)
    resumed = make_coordinator(Settings(Watched(JOINT[kind]())), WorkerPool(HALF))
    work(whole, only=lambda task: task.uid in ("h1-0", "h1-3"))
    work(whole, only=lambda task: task.uid == "h1-5" and isinstance(task, RolloutTask))
    resumed.load(pickle.loads(pickle.dumps(whole.state())))
    (first,) = learned(resumed)
    work(whole)
    (batch,) = learned(whole)
    assert [prompt.text for prompt in first.prompts] == texts(0, 3, 5)
    assert first.rollouts == tuple(batch.rollouts[i] for i in (0, 3, 5))
    assert first.asked.tolist() == batch.asked[[0, 3, 5]].tolist()
    again = TrainerRequest(2, tuple(request.prompts[i] for i in (1, 2, 4, 5)), tuple("abab"))
    open_rounds(resumed, again)
    work(resumed)
    check_rows(resumed.pool, resumed.pool.committed, again)
    assert [prompt.text for prompt in learned(resumed)[-1].prompts] == texts(1, 2, 4)


class Breaks(Uniform):
    """Calls prompts final, and then gives them more."""

    separable = False

    def plan(self, batch):
        plan = super().plan(batch)
        return plan if plan or batch.round > 1 else type(plan)(np.ones(len(batch.prompts), np.int64))

    def final(self, batch, plan):
        return np.ones(len(batch.prompts), bool)


def test_a_broken_promise_is_an_error_that_names_the_method():
    coordinator, _, _ = began(Breaks(2), 0, 1, 2, table=HALF)
    work(coordinator)
    with pytest.raises(RuntimeError, match=r"uniform must not change .* more rollouts for 2 final ones; .* final"):
        coordinator.metrics()


def test_rewards_are_checked_before_an_early_commit():
    coordinator, pool, _ = began(JOINT["knapsack"](), 0, 1, 2, table=Graded(success=(0.5,)))
    coordinator.receive([pool.carry_out(next(iter(pool.sent)))])
    with pytest.raises(RuntimeError, match="rewards must be 0 or 1 for knapsack"):
        coordinator.metrics()
    work(coordinator)
    assert not pool.committed
