"""Rollouts, commits and learning of every allocator, compared with the library's own loop on the same outcomes."""

import gc
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from apportion import DAPO, VIP, OptPO, Uniform
from apportion.baselines import Optimal, Predicted
from apportion.predictors import DiscountedCounts
from apportion.verl.coordinator.messages import RolloutTask, address_of
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
    make_coordinator,
    open_rounds,
    request_of,
    texts,
    uids_of,
    watched,
    work,
)


@pytest.fixture(params=sorted(ALLOCATORS))
def make(request):
    """Return a function that makes a new allocator."""
    return ALLOCATORS[request.param]


def groups_of(pool):
    """Return the groups that are committed."""
    return [group for commit in pool.committed for group in commit.groups]


@pytest.mark.parametrize(("failing", "retries"), [(0.3, 0), (0.3, 2)])
def test_a_round_equals_the_batch_of_the_librarys_loop(make, failing, retries):
    """Groups have the baselines of earlier rounds. Without labels there are no rewards to learn from.

    ``tests/golden`` has the rows and columns of the commits.
    """
    rule, alone, pool, rng = watched(make()), make(), WorkerPool(), np.random.default_rng(0)
    history, beside = (Optimal() if alone.needs.labels else None for _ in range(2))
    coordinator = make_coordinator(allocation(rule, history, retries=retries), pool)
    for step in range(1, 5):
        pool.table, pool.committed = Table(failing=failing, seed=step), []
        pool.requested_rollouts = 0
        request = request_of(texts(0, 1, 2, 3, 4, 5, 6), step)
        open_rounds(coordinator, request)
        work(coordinator, rng)
        batch = collected(alone, rule.learned[-1], request, pool.table, retries)
        assert rule.learned[-1] == batch
        names = [address_of(prompt).group for prompt in rule.learned[-1].prompts]
        baselines = [None] * len(names) if beside is None else beside.predict(batch.prompts).tolist()
        expected = dict(zip(names, baselines, strict=True))
        for group in groups_of(pool):
            assert group.columns.get("baseline", [None])[0] == pytest.approx(expected[group.columns["group"]])
        check_rows(pool, pool.committed, request)
        metrics = coordinator.metrics()
        assert metrics["rollouts"] == batch.asked.sum()
        assert metrics["failed"] == batch.asked.sum() - sum(map(len, batch.rollouts))
        assert metrics["retried"] == pool.requested_rollouts - batch.asked.sum()
        assert (metrics["requests"], metrics["empty_rounds"]) == (1, 0)
        own = alone.metrics(batch)
        own.pop("store_bytes", None)  # the uids are part of what is stored, and the library's loop has none
        assert metrics.items() >= own.items()
        alone.observe(batch)
        np.testing.assert_equal(rule.state_dict(), alone.state_dict())
        if beside is not None:
            beside.update(batch)
            np.testing.assert_equal(history.state_dict(), beside.state_dict())
    assert coordinator.metrics() == {}
    assert not coordinator._requests


class NoNorms(Table):
    def rollout(self, *args):
        return replace(super().rollout(*args), score_norm=None)


class Graded(Table):
    def rollout(self, *args):
        return replace(super().rollout(*args), correct=None, reward=0.4)


def test_without_norms_and_history_groups_have_neither_and_a_baseline_that_counts_needs_verdicts():
    coordinator, pool, _ = began(Uniform(2), 0, 1, table=NoNorms())
    work(coordinator)
    columns = [group.columns for group in groups_of(pool)]
    assert len(columns) == 2 and not {"score_norms", "baseline"} & {*columns[0], *columns[1]}
    coordinator, pool, _ = began(Uniform(2), 0, table=Graded(), baseline=Predicted(DiscountedCounts()))
    work(coordinator)
    assert not pool.committed
    with pytest.raises(RuntimeError, match=r"rewards must be 0 or 1 for predicted, which counts correct .* got 0.4"):
        coordinator.metrics()


class Shaped(Table):
    def rollout(self, text, number, *where):
        return replace(super().rollout(text, number, *where), reward=0.25 * number)


def test_under_the_gate_groups_are_committed_with_the_rewards_that_train_and_the_baseline_learns_outcomes():
    coordinator, pool, _ = began(
        Uniform(4), 0, 3, 6, table=Shaped(), baseline=Predicted(DiscountedCounts()), outcome_gate=True
    )
    work(coordinator)
    (batch,) = learned(coordinator)
    found = {group.columns["group"]: group.columns["rewards"] for group in groups_of(pool)}
    for prompt, rollouts in zip(batch.prompts, batch.rollouts, strict=True):
        rewards, right = (np.array([getattr(one, name) for one in rollouts]) for name in ("reward", "correct"))
        expected = right if np.ptp(right * 1.0) == 0 else rewards - rewards.mean() + right.mean()
        assert found[address_of(prompt).group] == pytest.approx(expected.astype(float))
    assert {np.ptp(own) > 0 for own in found.values()} == {True, False}
    coordinator, _, _ = began(Uniform(2), 0, table=Graded(), outcome_gate="order")
    work(coordinator)
    with pytest.raises(RuntimeError, match=r"allocation\.verdict must say which rollouts are correct: a rollout must"):
        coordinator.metrics()


def test_it_loads_neither_ray_nor_verl_nor_torch():
    code = "import apportion.verl.coordinator.service, sys; print({'ray', 'verl', 'torch'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_extra_prompts_have_their_own_groups_and_sessions_under_a_uid_of_the_round():
    coordinator, pool, request = began(
        DAPO(rollouts_per_prompt=3, target=8), 100, 103, 101, table=Table(success=(0.3,))
    )
    work(coordinator)
    (batch,) = learned(coordinator)
    assert len({prompt.id for prompt in batch.prompts}) == len(batch.prompts)
    extra = [address_of(prompt) for prompt in batch.prompts[batch.started :]]
    assert len(extra) > 6
    assert Counter(address.uid for address in extra) == Counter(uids_of(request) * (len(extra) // 3))
    assert len({address.group for address in extra} | set(uids_of(request))) == len(batch.prompts)
    check_rows(pool, pool.committed, request)
    assert {group.columns["group"] for group in groups_of(pool)} & {address.group for address in extra}
    coordinator = make_coordinator(
        allocation(DAPO(rollouts_per_prompt=2)), WorkerPool(Table(success=(0.0,))), source=None
    )
    open_rounds(coordinator, request_of(texts(0)))
    work(coordinator)
    with pytest.raises(RuntimeError, match="dapo draws fresh prompts"):
        coordinator.metrics()


def test_a_straggler_delays_only_prompts_that_share_its_budget(make):
    coordinator, pool, request = began(make(), 0, 1, 2, 3, 4, 5, table=Table(success=(0.5,)))
    straggler = next(iter(pool.sent.values()))[1].uid
    work(coordinator, only=lambda task: task.uid != straggler)
    assert {task.uid for _, task in pool.sent.values()} == {straggler}
    others = sorted(set(uids_of(request)) - {straggler})
    early = make().separable or make().one_round
    assert sorted(commit.uid for commit in pool.committed) == (others if early else [])
    assert not learned(coordinator)
    work(coordinator)
    check_rows(pool, pool.committed, request)


class DividedVotes(Uniform):
    """Trains on prompts whose rollouts are all correct."""

    def groups(self, batch):
        return [group for group in super().groups(batch) if all(rollout.correct for rollout in group.rollouts)]


def test_prompts_with_nothing_to_train_on_wait_for_one_with_something():
    coordinator, pool, request = began(DividedVotes(), 0, 2, 1, 4, table=Table(success=(0.0, 1.0)))
    work(coordinator, only=lambda task: task.uid != "h1-2")
    assert not pool.committed
    work(coordinator)
    check_rows(pool, pool.committed, request)
    assert {commit.uid for commit in pool.committed if commit.groups} == {"h1-2"}
    assert coordinator.metrics()["empty_rounds"] == 0


@pytest.mark.parametrize("finished", [("h1-0", "h1-1", "h1-2"), ("h1-2", "h1-1", "h1-0")])
def test_an_empty_round_has_one_row_without_an_advantage(finished):
    """Also if the prompt that finishes last has no rollout. Its baseline is its reward, not that from history."""
    coordinator, pool, request = began(DividedVotes(), 0, 1, 2, baseline=Predicted())
    for uid in finished:
        pool.table = Table(success=(0.0,), failing=float(uid == "h1-0"))
        work(coordinator, only=lambda task, uid=uid: task.uid == uid)
    work(coordinator)
    check_rows(pool, pool.committed, request)
    (group,) = groups_of(pool)
    assert group.columns["group"] == "h1-1"  # whatever finished first
    assert (group.columns["rewards"], len(group.rows)) == ((0.0,), 1)
    assert group.columns["baseline"] == (0.0,)
    statuses = {commit.uid: commit.status for commit in pool.committed}
    assert statuses == {"h1-0": "failure", "h1-1": "finished", "h1-2": "finished"}
    metrics = coordinator.metrics()
    assert (metrics["empty_rounds"], metrics["groups"]) == (1, 0)


def test_a_round_ends_if_all_rollouts_fail(make):
    coordinator, pool, _ = began(make(), 0, 1, 2, table=Table(failing=1.0), retries=1)
    work(coordinator)
    assert [commit.status for commit in pool.committed] == ["failure"] * 3 and not groups_of(pool)
    (batch,) = learned(coordinator)
    assert batch.asked.sum() > 0 == sum(map(len, batch.rollouts))
    assert coordinator.metrics()["empty_rounds"] == 0


def test_a_prompt_without_requested_rollouts_is_finished():
    coordinator = make_coordinator(allocation(watched(MAKE["hora"]())), pool := WorkerPool())
    coordinator.load(coordinator.state() | {"given": {"h1-0": 0}})
    open_rounds(coordinator, request := request_of(texts(0, 1)))
    work(coordinator)
    check_rows(pool, pool.committed, request)
    assert not pool.arrived["h1-0"]


def test_a_rollout_task_holds_the_answers_so_far_if_votes_count():
    allocator = OptPO(min_samples=4, max_samples=16, wave=4)
    coordinator, pool, _ = began(allocator, 0, table=Table(success=(0.4,), failing=0.2), retries=1)
    given = []
    while pool.sent:
        (id, (_, task)) = next(iter(pool.sent.items()))
        if isinstance(task, RolloutTask):
            assert task.answers == tuple(dict.fromkeys(answer for answer in given if answer is not None))
        result = pool.carry_out(id)
        given += [rollout.answer for rollout in result.rollouts]
        coordinator.receive([result])
    assert len(set(given)) > 2


def test_a_size_without_a_plan_is_refused_before_the_round():
    coordinator = make_coordinator(allocation(VIP(budget=8, predictor=DiscountedCounts())), WorkerPool())
    with pytest.raises(ValueError, match="budget"):
        open_rounds(coordinator, request_of(texts(*range(20))))
    open_rounds(coordinator, request_of(texts(0, 1)))
    work(coordinator)
    assert coordinator.metrics()["rollouts"] == 8


def test_the_cost_of_a_result_does_not_grow_with_the_round(make):
    """Function calls are counted, without the garbage collector's. Joint planning happens once a wave."""

    def calls(size):
        coordinator, pool, _ = began(make(), *range(size), table=Table(success=(0.5,)))
        if not make().separable:
            coordinator.receive([pool.carry_out(next(iter(pool.sent)))])
        result, count = pool.carry_out(next(iter(pool.sent))), 0

        def counted(frame, event, arg):
            nonlocal count
            count += event in ("call", "c_call")

        gc.disable()
        sys.setprofile(counted)
        try:
            coordinator.receive([result])
        finally:
            sys.setprofile(None)
            gc.enable()
        return count

    assert calls(400) < calls(20) + 100
