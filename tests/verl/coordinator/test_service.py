"""Rollouts, commits and learning of every allocator, compared with the library's own loop on the same outcomes."""

import itertools
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from apportion import DAPO, VIP, OptPO, Uniform, collect
from apportion.baselines import Optimal, Predicted
from apportion.predictors import DiscountedCounts
from apportion.verl.coordinator.messages import RolloutTask, TaskResult, address_of
from tests.rules import MAKE
from tests.verl.coordinator.worker_pool import (
    ALLOCATORS,
    ExtraPrompts,
    Settings,
    Table,
    Watched,
    WorkerPool,
    batch_of,
    check_rows,
    make_coordinator,
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


def source(extra_prompts):
    return lambda count: extra_prompts.draw(count, set())


def shown(batch, groups):
    """Return what should be committed of ``groups``, by name."""
    names = {prompt.id: address_of(prompt).group for prompt in batch.prompts}
    return {
        names[group.prompt.id]: (
            group.rewards.tolist(),
            [rollout.tokens for rollout in group.rollouts],
            [rollout.round for rollout in group.rollouts],
            [(i, r.completion.digest, r.step is None) for i, r in enumerate(group.rollouts) if group.keep[i]],
        )
        for group in groups
    }


def committed(commits):
    return {
        group.name: (
            list(group.rewards),
            list(group.tokens),
            list(group.rounds),
            [(row.position, row.written.digest, row.session is None) for row in group.rows],
        )
        for commit in commits
        for group in commit.groups
    }


@pytest.mark.parametrize(("failing", "retries"), [(0.0, 1), (0.3, 0), (0.3, 2)])
def test_a_round_equals_the_batch_of_the_librarys_loop(make, failing, retries):
    watched, alone, pool = Watched(make()), make(), WorkerPool()
    coordinator, extra_prompts, rng = (
        make_coordinator(Settings(watched, retries=retries), pool),
        ExtraPrompts(),
        np.random.default_rng(0),
    )
    for step in range(1, 5):
        pool.table, pool.committed = Table(failing=failing, seed=step), []
        pool.requested_rollouts = 0
        request = request_of(texts(0, 1, 2, 3, 4, 5, 6), step)
        open_rounds(coordinator, request)
        work(coordinator, rng)
        batch = collect(alone, list(request.prompts), sampler(pool.table, retries), source=source(extra_prompts))
        assert watched.learned[-1] == batch
        assert committed(pool.committed) == shown(watched.learned[-1], alone.groups(batch))
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
        np.testing.assert_equal(watched.state_dict(), alone.state_dict())
    assert coordinator.metrics() == {}
    assert not pool.held_requests


def test_groups_have_the_baselines_of_earlier_rounds_and_their_score_norms(make):
    allocator, alone, pool = Watched(make()), Optimal(), WorkerPool(Table(failing=0.1))
    if not allocator.needs.labels:
        pytest.skip(f"{allocator.name} has no rewards to learn a baseline from")
    coordinator = make_coordinator(Settings(allocator, Optimal()), pool)
    for step in range(1, 4):
        pool.committed = []
        open_rounds(coordinator, request_of(texts(0, 1, 2, 3, 4, 5, 6), step))
        work(coordinator, np.random.default_rng(step))
        batch = allocator.learned[-1]
        names = [address_of(prompt).group for prompt in batch.prompts]
        expected = dict(zip(names, alone.predict(batch.prompts).tolist(), strict=True))
        groups = [group for commit in pool.committed for group in commit.groups]
        assert groups and all(group.baseline == pytest.approx(expected[group.name]) for group in groups)
        assert all(group.score_norms == tuple(4.0 - 3.0 * reward for reward in group.rewards) for group in groups)
        alone.update(batch)
    assert len(set(expected.values())) > 1
    np.testing.assert_equal(coordinator.state()["baseline"], alone.state_dict())


def test_without_norms_and_history_groups_have_neither():
    class NoNorms(Table):
        def rollout(self, *args):
            return replace(super().rollout(*args), score_norm=None)

    pool = WorkerPool(NoNorms())
    coordinator = make_coordinator(Settings(Uniform(2)), pool)
    open_rounds(coordinator, request_of(texts(0, 1)))
    work(coordinator)
    groups = [group for commit in pool.committed for group in commit.groups]
    assert [(group.score_norms, group.baseline) for group in groups] == [((), None)] * 2


def test_a_baseline_that_counts_needs_verdicts():
    class Graded(Table):
        def rollout(self, *args):
            return replace(super().rollout(*args), correct=None, reward=0.4)

    pool = WorkerPool(Graded())
    coordinator = make_coordinator(Settings(Uniform(2), Predicted(DiscountedCounts())), pool)
    open_rounds(coordinator, request_of(texts(0)))
    work(coordinator)
    with pytest.raises(RuntimeError, match=r"rewards must be 0 or 1 for predicted, which counts correct .* got 0.4"):
        coordinator.metrics()


def test_it_loads_neither_ray_nor_verl_nor_torch():
    code = "import apportion.verl.coordinator.service, sys; print({'ray', 'verl', 'torch'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_concurrent_requests_have_their_own_budgets(make):
    watched, pool = Watched(make()), WorkerPool(Table(failing=0.1))
    coordinator = make_coordinator(Settings(watched), pool)
    requests = [request_of(texts(*range(size)), step) for step, size in enumerate((7, 1, 4, 1, 2, 1))]
    open_rounds(coordinator, *requests[:4])
    coordinator.receive([pool.carry_out(id) for id in list(pool.sent)[:3]])
    open_rounds(coordinator, *requests[4:])
    work(coordinator, np.random.default_rng(1))
    check_rows(pool, pool.committed, *requests)
    assert len(watched.learned) == len(requests)
    for request in requests:
        alone, batch, size = make(), batch_of(watched, request), len(request.prompts)
        fresh = iter(batch.prompts[batch.started :])
        prompts, draw = list(request.prompts), lambda count, fresh=fresh: list(itertools.islice(fresh, count))
        assert batch == collect(alone, prompts, sampler(pool.table), source=draw)
        assert batch.asked.sum() <= alone.size(size).asked
        if alone.size(size).exact:
            assert batch.asked.sum() == alone.size(size).asked
    metrics = coordinator.metrics()
    assert metrics["requests"] == len(requests)
    assert metrics["rollouts"] == sum(batch.asked.sum() for batch in watched.learned)


def test_extra_prompts_have_their_own_groups_and_sessions_under_a_uid_of_the_round():
    pool = WorkerPool(Table(success=(0.3,)))
    coordinator = make_coordinator(Settings(Watched(DAPO(rollouts_per_prompt=3, target=8))), pool)
    request = request_of(texts(100, 103, 101))
    open_rounds(coordinator, request)
    work(coordinator)
    batch = coordinator.allocation.allocator.learned[0]
    assert len({prompt.id for prompt in batch.prompts}) == len(batch.prompts)
    extra_prompts = [address_of(prompt) for prompt in batch.prompts[batch.started :]]
    assert len(extra_prompts) > 6
    assert Counter(address.uid for address in extra_prompts) == Counter(uids_of(request) * (len(extra_prompts) // 3))
    assert len({address.group for address in extra_prompts} | set(uids_of(request))) == len(batch.prompts)
    check_rows(pool, pool.committed, request)
    trained = {group.name for commit in pool.committed for group in commit.groups}
    assert trained & {address.group for address in extra_prompts}


def test_extra_prompts_without_a_data_set_are_an_error_that_names_the_allocator():
    coordinator = make_coordinator(
        Settings(DAPO(rollouts_per_prompt=2)), WorkerPool(Table(success=(0.0,))), source=None
    )
    open_rounds(coordinator, request_of(texts(0)))
    work(coordinator)
    with pytest.raises(RuntimeError, match="dapo draws fresh prompts"):
        coordinator.metrics()


def test_a_straggler_delays_only_prompts_that_share_its_budget(make):
    allocator, pool = Watched(make()), WorkerPool(Table(success=(0.5,)))
    coordinator = make_coordinator(Settings(allocator), pool)
    request = request_of(texts(0, 1, 2, 3, 4, 5))
    open_rounds(coordinator, request)
    straggler = next(iter(pool.sent.values()))[1].uid
    work(coordinator, only=lambda task: task.uid != straggler)
    assert {task.uid for _, task in pool.sent.values()} == {straggler}
    others = sorted(set(uids_of(request)) - {straggler})
    early = allocator.separable or allocator.one_round
    assert sorted(commit.uid for commit in pool.committed) == (others if early else [])
    assert not allocator.learned
    work(coordinator)
    check_rows(pool, pool.committed, request)


def test_prompts_with_nothing_to_train_on_wait_for_one_with_something():
    pool = WorkerPool(Table(success=(0.0, 1.0)))
    coordinator = make_coordinator(Settings(DividedVotes()), pool)
    request = request_of(texts(0, 2, 1, 4))
    open_rounds(coordinator, request)
    work(coordinator, only=lambda task: task.uid != "h1-2")
    assert not pool.committed
    work(coordinator)
    check_rows(pool, pool.committed, request)
    assert {commit.uid for commit in pool.committed if commit.groups} == {"h1-2"}
    assert coordinator.metrics()["empty_rounds"] == 0


@pytest.mark.parametrize("finished", [("h1-0", "h1-1", "h1-2"), ("h1-2", "h1-1", "h1-0")])
def test_an_empty_round_has_one_row_without_an_advantage(finished):
    """Also if the prompt that finishes last has no rollout. Its baseline is its reward, not that from history."""
    pool = WorkerPool(Table(success=(0.0,)))
    coordinator = make_coordinator(Settings(DividedVotes(), Predicted()), pool)
    request = request_of(texts(0, 1, 2))
    open_rounds(coordinator, request)
    for uid in finished:
        pool.table = Table(success=(0.0,), failing=float(uid == "h1-0"))
        work(coordinator, only=lambda task, uid=uid: task.uid == uid)
    work(coordinator)
    check_rows(pool, pool.committed, request)
    groups = [group for commit in pool.committed for group in commit.groups]
    assert [(group.rewards, len(group.rows), group.rewarded) for group in groups] == [((0.0,), 1, False)]
    assert groups[0].baseline == 0.0 and Predicted().predict(request.prompts).tolist() == [0.5] * 3
    assert {commit.uid: commit.status for commit in pool.committed} == {
        "h1-0": "failure",
        "h1-1": "finished",
        "h1-2": "finished",
    }
    metrics = coordinator.metrics()
    assert (metrics["empty_rounds"], metrics["groups"]) == (1, 0)


class DividedVotes(Uniform):
    """Trains on prompts whose rollouts are all correct."""

    def groups(self, batch):
        return [group for group in super().groups(batch) if all(rollout.correct for rollout in group.rollouts)]


def test_a_round_ends_if_all_rollouts_fail(make):
    watched, pool = Watched(make()), WorkerPool(Table(failing=1.0))
    coordinator = make_coordinator(Settings(watched, retries=1), pool)
    request = request_of(texts(0, 1, 2))
    open_rounds(coordinator, request)
    work(coordinator)
    assert [commit.status for commit in pool.committed] == ["failure"] * 3
    assert not any(commit.groups for commit in pool.committed)
    assert watched.learned[0].asked.sum() > 0 == sum(map(len, watched.learned[0].rollouts))
    assert coordinator.metrics()["empty_rounds"] == 0


def test_votes_reward_rows_and_verdicts_do_not():
    for allocator, rewarded in ((Uniform(), False), (MAKE["ttrl"](), True)):
        pool = WorkerPool(Table(success=(0.9,)))
        coordinator = make_coordinator(Settings(allocator), pool)
        open_rounds(coordinator, request_of(texts(0, 1)))
        work(coordinator)
        assert {group.rewarded for commit in pool.committed for group in commit.groups} == {rewarded}


def test_a_rollout_task_holds_the_answers_so_far_if_votes_count():
    pool = WorkerPool(Table(success=(0.4,), failing=0.2))
    coordinator = make_coordinator(Settings(OptPO(min_samples=4, max_samples=16, wave=4), retries=1), pool)
    open_rounds(coordinator, request_of(texts(0)))
    given: list[str | None] = []
    while pool.sent:
        (id, (_, task)) = next(iter(pool.sent.items()))
        if isinstance(task, RolloutTask):
            assert task.answers == tuple(dict.fromkeys(answer for answer in given if answer is not None))
        result = pool.carry_out(id)
        given += [rollout.answer for rollout in result.rollouts]
        coordinator.receive([result])
    assert len(set(given)) > 2


def test_failed_rollouts_are_tried_again_and_charged_once():
    failing = {0, 1, 4, 6}

    class Stubborn(WorkerPool):
        def sample(self, task):
            result = super().sample(task)
            return replace(result, rollouts=tuple(r for r in result.rollouts if r.completion.session not in failing))

    for retries, arrived in ((0, 2), (1, 3), (2, 3), (3, 4), (9, 4)):
        pool, watched = Stubborn(), Watched(Uniform(rollouts_per_prompt=4))
        coordinator = make_coordinator(Settings(watched, retries=retries), pool)
        open_rounds(coordinator, request_of(texts(0)))
        tasks = []
        while pool.sent:
            tasks += [task.sessions for _, task in pool.sent.values() if isinstance(task, RolloutTask)]
            coordinator.receive([pool.carry_out(next(iter(pool.sent)))])
        assert tasks == [(0, 1, 2, 3), (4, 5), (6,), (7,)][: 1 + retries]
        assert (watched.learned[0].asked.tolist(), len(watched.learned[0].rollouts[0])) == ([4], arrived)
        assert coordinator.metrics()["failed"] == 4 - arrived


def test_a_size_without_a_plan_is_refused_before_the_round():
    coordinator = make_coordinator(Settings(VIP(budget=8, predictor=DiscountedCounts())), WorkerPool())
    with pytest.raises(ValueError, match="budget"):
        open_rounds(coordinator, request_of(texts(*range(20))))
    open_rounds(coordinator, request_of(texts(0, 1)))
    work(coordinator)
    assert coordinator.metrics()["rollouts"] == 8


def test_results_of_tasks_that_are_not_pending_are_ignored():
    watched, pool = Watched(Uniform(rollouts_per_prompt=2)), WorkerPool()
    coordinator = make_coordinator(Settings(watched), pool)
    open_rounds(coordinator, request_of(texts(0)))
    result = pool.carry_out("h1-0:1")
    coordinator.receive([TaskResult("h9-9:1"), result, replace(result, rollouts=())])
    coordinator.receive([result])
    work(coordinator)
    assert watched.learned[0].rollouts[0] == tuple(replace(r, round=0) for r in result.rollouts)
    assert coordinator.metrics()["retried"] == 0


def test_the_cost_of_a_result_does_not_grow_with_the_round(make):
    """Function calls are counted. Joint planning happens once a wave, and the garbage collector adds a few calls."""

    def calls(size):
        pool = WorkerPool(Table(success=(0.5,)))
        coordinator = make_coordinator(Settings(make()), pool)
        open_rounds(coordinator, request_of(texts(*range(size))))
        if not coordinator.allocation.allocator.separable:
            coordinator.receive([pool.carry_out(next(iter(pool.sent)))])
        result, count = pool.carry_out(next(iter(pool.sent))), 0

        def counted(frame, event, arg):
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(counted)
        coordinator.receive([result])
        sys.setprofile(None)
        return count

    assert calls(400) < calls(20) + 100
