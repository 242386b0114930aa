"""A resumed coordinator continues from a checkpoint, and the order of results changes nothing."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from apportion.baselines import Optimal
from apportion.verl.coordinator.messages import TrainerRequest, address_of
from tests.verl.coordinator.worker_pool import (
    ALLOCATORS,
    Table,
    WorkerPool,
    allocation,
    check_rows,
    make_coordinator,
    open_rounds,
    request_of,
    texts,
    uids_of,
    watched,
    work,
)


def history(kind):
    """Return a baseline for an allocator that has labels."""
    return Optimal() if ALLOCATORS[kind]().needs.labels else None


def run_round(coordinator, step, numbers=(0, 1, 2, 3, 4, 5, 6), seed=0):
    """Run a whole round, and log it as the trainer does. Return its commits, sorted by uid."""
    pool = coordinator.pool
    pool.table, pool.committed = Table(failing=0.1, seed=step), []
    open_rounds(coordinator, request_of(texts(*numbers), step))
    work(coordinator, np.random.default_rng(seed))
    coordinator.metrics()
    return sorted(pool.committed, key=lambda commit: commit.uid)


@pytest.mark.parametrize("kind", sorted(ALLOCATORS))
def test_a_run_resumed_between_rounds_equals_an_uninterrupted_one(kind):
    """A state that was taken does not change: an asynchronous trainer writes it while the coordinator goes on."""
    whole = make_coordinator(allocation(ALLOCATORS[kind](), history(kind), retries=1), WorkerPool())
    for step in (1, 2):
        run_round(whole, step)
    state = whole.state()
    taken = copy.deepcopy(state)
    resumed = make_coordinator(allocation(ALLOCATORS[kind](), history(kind), retries=1), WorkerPool())
    resumed.load(pickle.loads(pickle.dumps(state)))
    for step in (3, 4):
        assert run_round(resumed, step, seed=1) == run_round(whole, step)
    np.testing.assert_equal(state, taken)
    np.testing.assert_equal(resumed.state(), whole.state())


@given(kind=st.sampled_from(sorted(set(ALLOCATORS) - {"dapo"})), seed=st.integers(0, 10**6))
def test_no_prompt_is_learned_from_twice_or_never_in_an_asynchronous_trainer(kind, seed):
    """verl saves its queue, then our state is saved. A resumed run requests again what the queue had in flight."""
    rng = np.random.default_rng(seed)
    table = Table(success=(0.5,))
    whole, resumed = (make_coordinator(allocation(watched(ALLOCATORS[kind]())), WorkerPool(table)) for _ in range(2))
    rounds = [request_of(texts(*range(7 * step, 7 * step + 7)), step) for step in range(3)]
    prompts = {address_of(prompt).uid: prompt for request in rounds for prompt in request.prompts}

    def go_on(steps):
        """Let so many things happen: a round begins, a task ends, or its end is not known yet."""
        for _ in range(steps):
            if rounds and (rng.random() < 0.1 or not whole.pool.sent):
                open_rounds(whole, rounds.pop())
            elif whole.pool.sent:
                ended.append(whole.pool.carry_out(str(rng.choice(list(whole.pool.sent)))))
            if ended and rng.random() < 0.7:
                whole.receive([ended.pop(int(rng.integers(len(ended))))])

    ended = []
    go_on(int(rng.integers(0, 60)))
    whole.metrics()
    go_on(int(rng.integers(0, 30)))
    opened = {uid for uid in prompts if uid not in {u for request in rounds for u in uids_of(request)}}
    in_flight = sorted(opened - {commit.uid for commit in whole.pool.committed})
    before = len(rounds)
    go_on(int(rng.integers(0, 30)))
    assume(len(rounds) == before)  # verl's trainer saves both, so it requests nothing in between
    state = pickle.loads(pickle.dumps(whole.state()))
    learned = [prompt.text for batch in whole.allocation.allocator.learned for prompt in batch.prompts]
    resumed.load(state)
    if in_flight:
        open_rounds(resumed, TrainerRequest(9, tuple(prompts[uid] for uid in in_flight), ("a",) * len(in_flight)))
        work(resumed, rng)
        check_rows(resumed.pool, resumed.pool.committed, TrainerRequest(9, tuple(map(prompts.get, in_flight)), ()))
    learned += [prompt.text for batch in resumed.allocation.allocator.learned for prompt in batch.prompts]
    assert sorted(learned) == sorted(prompts[uid].text for uid in opened)
    again = request_of(texts(0, 1), 8)
    open_rounds(resumed, again)
    work(resumed, rng)
    assert len(resumed.allocation.allocator.learned[-1].prompts) == 2 and not resumed._planner.learned_uids


def rollouts_of(commits):
    """Return the number of rollouts that are trained on, by uid."""
    return {commit.uid: sum(len(group.rows) for group in commit.groups) for commit in commits}


@pytest.mark.parametrize("kind", ["vip", "hora", "hora in tokens"])
def test_the_total_of_a_run_that_is_killed_twice_at_any_moment_is_that_of_an_uninterrupted_one(kind):
    """Two rounds are in flight. verl requests what is not committed again, in one request, and once more.

    A rule in tokens gives each prompt whose number was known that number again.
    """
    exact = ALLOCATORS[kind]().size(7).exact

    def began():
        coordinator = make_coordinator(allocation(ALLOCATORS[kind]()), WorkerPool())
        run_round(coordinator, 1)
        coordinator.pool.table = Table()
        open_rounds(coordinator, *requests)
        coordinator.pool.committed = []
        return coordinator

    def kill(coordinator, prompts, step, moments):
        """Return a resumed run after so many results, and the rollouts of the commits that verl has."""
        rng = np.random.default_rng(moments)

        def go_on(count):
            for _ in range(count):
                if coordinator.pool.sent:
                    coordinator.receive([coordinator.pool.carry_out(str(rng.choice(list(coordinator.pool.sent))))])

        go_on(moments)
        done = rollouts_of(coordinator.pool.committed)
        go_on(moments % 4)  # verl saves its queue a little before it saves our state
        state = pickle.loads(pickle.dumps(coordinator.state()))
        resumed = make_coordinator(allocation(ALLOCATORS[kind]()), WorkerPool(Table(seed=1)))
        resumed.load(state)
        left = {uid: prompt for uid, prompt in prompts.items() if uid not in done}
        if left:
            open_rounds(resumed, TrainerRequest(step, tuple(left.values()), ("a",) * len(left)))
        return resumed, left, done, state["given"]

    requests = [request_of(texts(*range(7)), 2), request_of(texts(*range(7, 12)), 3)]
    prompts = {address_of(prompt).uid: prompt for request in requests for prompt in request.prompts}
    whole = began()
    work(whole)
    wanted = rollouts_of(whole.pool.committed)
    for moments in range(0, 40, 2):
        resumed, left, done, given = kill(began(), prompts, 4, moments)
        if left:
            resumed, left, more, later = kill(resumed, left, 5, moments // 3)
            assert {uid: count for uid, count in later.items() if uid in given}.items() <= given.items()
            done, given = done | more, later
        work(resumed)
        found = done | rollouts_of(resumed.pool.committed)
        assert (
            found.keys() == wanted.keys() and {uid: found[uid] for uid in left if uid in given}.items() <= given.items()
        )
        assert not exact or sum(found.values()) == sum(wanted.values())
        run_round(resumed, 6)
        assert not resumed.state()["given"]
