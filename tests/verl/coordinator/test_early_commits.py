"""Prompts that share a budget are committed as soon as nothing can change them, with the same result as at the end."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from apportion import DAPO, HORA
from apportion.baselines import Optimal
from apportion.verl.coordinator.messages import RolloutTask
from tests.verl.coordinator.worker_pool import (
    ALLOCATORS,
    Table,
    WorkerPool,
    allocation,
    began,
    check_rows,
    make_coordinator,
    open_rounds,
    request_of,
    texts,
    watched,
    work,
)

JOINT = {name: make for name, make in ALLOCATORS.items() if not make().separable} | {
    "dapo without draws": lambda: DAPO(rollouts_per_prompt=3, max_draws=1),
    "dapo of a few": lambda: DAPO(rollouts_per_prompt=3, target=2, max_draws=1),
}
"""Makers of the rules that plan prompts together."""


def at_the_end(batch, plan):
    """Promise nothing, so that all prompts are committed at the end of the round."""
    return np.zeros(len(batch.prompts), bool)


def by_uid(commits):
    found = {commit.uid: commit for commit in commits}
    assert len(found) == len(commits)
    return found


@given(kind=st.sampled_from(sorted(JOINT)), seed=st.integers(0, 10**6), retries=st.integers(0, 1))
def test_early_commits_change_nothing_that_is_trained_on_learned_or_logged(kind, seed, retries):
    runs = []
    for promises in ({}, {"final": at_the_end}):
        allocator = watched(JOINT[kind](), **promises)
        history = Optimal() if allocator.needs.labels else None
        pool = WorkerPool(Table(failing=0.2, seed=seed))
        runs.append(make_coordinator(allocation(allocator, history, retries=retries), pool))
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
        assert early.metrics() == end.metrics()
        np.testing.assert_equal(early.state(), end.state())
    assert early.pool.rows == end.pool.rows


def test_prompts_that_get_nothing_of_the_last_wave_are_committed_when_it_begins():
    """With 13 rollouts for 6 prompts, HORA gives one prompt a second rollout and 5 none after 2 for each."""
    coordinator, pool, _ = began(HORA(pre_rollouts=2, budget=13), 0, 1, 2, 3, 4, 5, table=Table(success=(1.0,)))
    coordinator.receive([pool.carry_out(id) for id in list(pool.sent)])
    (running,) = [task for _, task in pool.sent.values() if isinstance(task, RolloutTask)]
    work(coordinator, only=lambda task: not isinstance(task, RolloutTask))
    assert len(pool.committed) == 5 and running.uid not in by_uid(pool.committed)
