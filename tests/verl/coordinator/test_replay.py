"""A restarted coordinator: a checkpoint restores what the allocator learned, the journal the whole state."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion import Uniform
from apportion.baselines import Optimal, Zero
from apportion.verl.coordinator import journal as journal_module
from apportion.verl.coordinator.frames import make_frame
from apportion.verl.coordinator.journal import EventJournal
from apportion.verl.coordinator.messages import MetricsLogged, Reassigned, RolloutTask, TrainerRequest, address_of
from tests.verl.coordinator.worker_pool import (
    ALLOCATORS,
    Settings,
    Table,
    Watched,
    WorkerPool,
    coordinator_factory,
    lose_worker,
    open_rounds,
    request_of,
    texts,
    trained_on,
    work,
)

TORN = st.sampled_from([0.0, 0.01, 0.5, 0.99])


@pytest.fixture
def make_coordinator(tmp_path):
    with coordinator_factory(tmp_path) as make:
        yield make


def history(kind):
    """Return a baseline for an allocator that has labels."""
    return Optimal() if ALLOCATORS[kind]().needs.labels else None


def run_round(coordinator, step, numbers=(0, 1, 2, 3, 4, 5, 6), seed=0):
    """Run a whole round. Return its commits, sorted by uid."""
    pool = coordinator.pool
    pool.table, pool.committed = Table(failing=0.1, seed=step), []
    open_rounds(coordinator, request_of(texts(*numbers), step))
    work(coordinator, np.random.default_rng(seed))
    return sorted(pool.committed, key=lambda commit: commit.uid)


@pytest.mark.parametrize("kind", sorted(ALLOCATORS))
def test_a_run_resumed_between_rounds_equals_an_uninterrupted_one(make_coordinator, kind):
    whole = make_coordinator(Settings(ALLOCATORS[kind](), history(kind), retries=1), WorkerPool(), name="whole")
    for step in (1, 2):
        run_round(whole, step)
    state = pickle.loads(pickle.dumps(whole.state()))
    resumed = make_coordinator(Settings(ALLOCATORS[kind](), history(kind), retries=1), WorkerPool(), name="resumed")
    resumed.load(state)
    for step in (3, 4):
        assert run_round(resumed, step, seed=1) == run_round(whole, step)
    np.testing.assert_equal(resumed.state(), whole.state())


@pytest.mark.parametrize("kind", sorted(name for name, make in ALLOCATORS.items() if make().separable))
def test_a_run_resumed_within_a_round_has_learned_what_was_committed(make_coordinator, kind):
    """The trainer requests the other prompts again."""
    table = Table(success=(0.5,))
    whole, resumed = (
        make_coordinator(Settings(Watched(ALLOCATORS[kind]())), WorkerPool(table), name=name)
        for name in ("whole", "resumed")
    )
    request = request_of(texts(0, 1, 2, 3, 4, 5))
    open_rounds(whole, request)
    work(whole, only=lambda task: task.uid in ("h1-0", "h1-3"))
    work(whole, only=lambda task: task.uid == "h1-5" and isinstance(task, RolloutTask))
    resumed.load(pickle.loads(pickle.dumps(whole.state())))
    (first,) = resumed.allocation.allocator.learned
    assert [prompt.text for prompt in first.prompts] == texts(0, 3)
    rest = [i for i in range(6) if i not in (0, 3)]
    again = TrainerRequest(2, tuple(request.prompts[i] for i in rest), tuple("abab"))
    open_rounds(resumed, again)
    work(resumed)
    work(whole)
    (batch,), rest = whole.allocation.allocator.learned, resumed.allocation.allocator.learned[1]
    found = dict(zip((p.text for p in first.prompts + rest.prompts), first.rollouts + rest.rollouts, strict=True))
    assert found == dict(zip((p.text for p in batch.prompts), batch.rollouts, strict=True))
    later = request_of(texts(*range(6)), 3)
    for coordinator in (whole, resumed):
        coordinator.pool.table, coordinator.pool.requested_rollouts = Table(success=(0.1,), seed=1), 0
        open_rounds(coordinator, later)
        work(coordinator)
    assert whole.pool.requested_rollouts == resumed.pool.requested_rollouts
    assert whole.allocation.allocator.learned[-1] == resumed.allocation.allocator.learned[-1]


def test_the_state_of_another_allocator_is_refused(make_coordinator):
    state = make_coordinator(Settings(ALLOCATORS["vip"]()), WorkerPool()).state()
    with pytest.raises(ValueError, match="same allocator, uniform, got one of 'vip'; resume"):
        make_coordinator(Settings(Uniform()), WorkerPool(), name="other").load(state)


@pytest.mark.parametrize(
    ("saved", "resumed", "message"),
    [
        (Optimal, None, "baseline must be None in a saved state of 'the coordinator'"),
        (None, Zero, "baseline must be that of zero in a saved state of 'the coordinator'"),
        (Optimal, Zero, "the baseline 'zero', got 'optimal'"),
    ],
)
def test_the_state_of_another_baseline_is_refused(make_coordinator, saved, resumed, message):
    state = make_coordinator(Settings(Uniform(), saved and saved()), WorkerPool()).state()
    with pytest.raises(ValueError, match=message):
        make_coordinator(Settings(Uniform(), resumed and resumed()), WorkerPool(), name="other").load(state)


class KeptJournal(EventJournal):
    """A journal that keeps all events, and the file's content after each."""

    def __init__(self, path):
        super().__init__(path)
        self.events, self.files = [], []

    def write(self, event):
        super().write(event)
        self.events.append(event)
        self.files.append(self.path.read_bytes())

    def restart(self, state):
        super().restart(state)
        if self.files:
            self.files[-1] = self.path.read_bytes()


class LoggedPool(WorkerPool):
    """A pool that logs its tasks with the number of events before each."""

    def __init__(self, table):
        super().__init__(table)
        self.events, self.log = [], []

    def send(self, worker, task):
        super().send(worker, task)
        self.log.append((len(self.events), worker, task))


def outstanding(log, events):
    """Return the tasks without a result after ``events``: worker and task by id."""
    found = {}
    for after, worker, task in log:
        if after <= len(events):
            found[task.id] = (worker, task)
    for number, event in enumerate(events, start=1):
        if isinstance(event, tuple):
            for result in event:
                found.pop(result.id, None)
        if isinstance(event, Reassigned) and not event.worker:
            sent = {task.id for after, _, task in log if after < number and isinstance(task, RolloutTask)}
            found = {id: each for id, each in found.items() if not (id in sent and each[1].uid in event.uids)}
    return found


def confirmed(pool, events):
    """Return the commits of ``pool`` whose results are in ``events``."""
    answered = {result.id for event in events if isinstance(event, tuple) for result in event}
    return [commit for commit in pool.committed if commit.id in answered]


def by_uid(commits):
    """Return commits and the keys that they train on, by uid. Check that each uid is committed once."""
    found = {commit.uid: (commit, trained_on([commit])) for commit in commits}
    assert len(found) == len(commits)
    return found


def restart(coordinator, journal, torn):
    """Replay ``journal``, which ends in the first bytes of an event, a share ``torn`` of it."""
    begun = make_frame(request_of(texts(0, 1, 2)))
    coordinator.journal.path.write_bytes(journal + bytes(begun[: int(torn * len(begun))]))
    coordinator.replay()


def requests(rng, count):
    sizes = rng.integers(1, 5, size=count)
    return [
        request_of(texts(*rng.choice(7, size=size, replace=False)), step) for step, size in enumerate(sizes, start=1)
    ]


def act(coordinator, rng, waiting, deaths):
    """Let something happen to a coordinator: results, a request, a worker's death, or a look at metrics or state."""
    pool, what = coordinator.pool, rng.random()
    if waiting and (what < 0.3 or not pool.sent):
        open_rounds(coordinator, waiting.pop(0))
    elif what < 0.4:
        worker, others = [("a", ["b"]), ("b", ["a"]), ("a", ["a"]), ("b", [])][rng.integers(4)]
        pool.available = bool(rng.random() < 0.7)
        number = len(coordinator.journal.events)
        deaths[number] = (worker, others, pool.available)
        lose_worker(coordinator, worker, others)
    elif what < 0.45:
        coordinator.metrics()
    elif what < 0.5:
        coordinator.state()
    elif pool.sent:
        some = rng.choice(list(pool.sent), size=int(rng.integers(1, 4)))
        coordinator.receive([pool.carry_out(str(id)) for id in dict.fromkeys(some)])


def repeat(coordinator, event, death):
    """Let ``event`` happen to a coordinator."""
    if isinstance(event, TrainerRequest):
        coordinator.open(event)
    elif isinstance(event, MetricsLogged):
        coordinator.metrics()
    elif isinstance(event, Reassigned):
        worker, others, coordinator.pool.available = death
        lose_worker(coordinator, worker, others)
    else:
        for result in event:
            task = coordinator.pool.sent.pop(result.id)[1]
            if not isinstance(task, RolloutTask):
                coordinator.pool.commit(task)
        coordinator.receive(event)


@settings(max_examples=150)
@given(kind=st.sampled_from(sorted(ALLOCATORS)), seed=st.integers(0, 10**6), retries=st.integers(0, 2), data=st.data())
def test_a_replayed_coordinator_equals_the_one_that_died(tmp_path_factory, kind, seed, retries, data):
    """Tasks, groups, metrics and learning agree after any event, also if half of another follows it."""
    folder, rng, deaths = tmp_path_factory.mktemp("journals"), np.random.default_rng(seed), {}
    with coordinator_factory(folder) as make_coordinator:
        allocator = Watched(ALLOCATORS[kind]())
        pool = LoggedPool(Table(failing=0.2, seed=seed))
        whole = make_coordinator(Settings(allocator, history(kind), retries=retries), pool, "whole", KeptJournal)
        whole.pool.events = whole.journal.events
        waiting = requests(rng, 4)
        uids = {address_of(prompt).uid: prompt.text for request in waiting for prompt in request.prompts}
        while waiting or whole.pool.sent:
            act(whole, rng, waiting, deaths)
        last, events = whole.metrics(), whole.journal.events
        cut = data.draw(st.integers(1, len(events)), label="events before the restart")
        resumed = make_coordinator(
            Settings(Watched(ALLOCATORS[kind]()), history(kind), retries=retries), WorkerPool(texts=uids), "resumed"
        )
        restart(resumed, whole.journal.files[cut - 1], data.draw(TORN))
        assert resumed.pool.sent == outstanding(whole.pool.log, events[:cut])
        ended = None
        for number, event in enumerate(events[cut:], start=cut):
            if isinstance(event, MetricsLogged) and number == len(events) - 1:
                ended = resumed.metrics()
            else:
                repeat(resumed, event, deaths.get(number))
        before, after = by_uid(confirmed(whole.pool, events[:cut])), by_uid(resumed.pool.committed)
        assert not before.keys() & after.keys()
        assert before | after == by_uid(whole.pool.committed)
        assert not resumed.pool.sent
        assert ended in (None, last)
        assert resumed.extra_prompts.drawn == whole.extra_prompts.drawn
        learned = resumed.allocation.allocator.learned
        assert learned == allocator.learned[len(allocator.learned) - len(learned) :]
        np.testing.assert_equal(resumed.state(), whole.state())


@settings(max_examples=60)
@given(kind=st.sampled_from(sorted(ALLOCATORS)), seed=st.integers(0, 10**6), data=st.data())
def test_another_order_of_results_after_a_restart_changes_nothing(tmp_path_factory, kind, seed, data):
    """Rounds follow each other, as in a synchronous trainer."""
    rng, waiting = np.random.default_rng(seed), requests(np.random.default_rng(seed), 3)
    uids = {address_of(prompt).uid: prompt.text for request in waiting for prompt in request.prompts}
    with coordinator_factory(tmp_path_factory.mktemp("journals")) as make_coordinator:
        pools = [WorkerPool(Table(failing=0.2, seed=seed), texts=dict(uids)) for _ in range(2)]
        whole = make_coordinator(Settings(ALLOCATORS[kind](), retries=1), pools[0], "whole", KeptJournal)
        for request in waiting:
            open_rounds(whole, request)
            work(whole, rng)
        events = whole.journal.events
        cut = data.draw(st.integers(1, len(events)), label="events before the restart")
        resumed = make_coordinator(Settings(ALLOCATORS[kind](), retries=1), pools[1], "resumed")
        restart(resumed, whole.journal.files[cut - 1], data.draw(TORN))
        work(resumed, rng)
        for request in [request for request in waiting if request in events[cut:]]:
            open_rounds(resumed, request)
            work(resumed, rng)
        before, after = by_uid(confirmed(whole.pool, events[:cut])), by_uid(resumed.pool.committed)
        assert not before.keys() & after.keys()
        assert before | after == by_uid(whole.pool.committed)
        np.testing.assert_equal(resumed.state(), whole.state())
        assert resumed.metrics() == whole.metrics()


def test_the_rollout_of_an_empty_round_does_not_depend_on_the_order_of_results(make_coordinator):
    """With this seed no prompt of the last round has votes that decide."""
    found = []
    for order in range(30):
        rng, waiting = np.random.default_rng(order), requests(np.random.default_rng(238), 3)
        uids = {address_of(prompt).uid: prompt.text for request in waiting for prompt in request.prompts}
        pool = WorkerPool(Table(failing=0.2, seed=238), texts=uids)
        coordinator = make_coordinator(Settings(ALLOCATORS["ttrl"](), retries=1), pool, f"order {order}")
        for request in waiting:
            open_rounds(coordinator, request)
            work(coordinator, rng)
        found.append(by_uid(pool.committed))
    assert all(commits == found[0] for commits in found)


def test_a_long_journal_is_replaced_by_a_snapshot_without_loss(make_coordinator, monkeypatch):
    monkeypatch.setattr(journal_module, "LARGE_BYTES", 20_000)
    whole, plain = (
        make_coordinator(Settings(ALLOCATORS["vip"]()), WorkerPool(), name=name) for name in ("whole", "plain")
    )
    longest = 0
    for step in range(1, 30):
        for coordinator in (whole, plain):
            open_rounds(coordinator, request_of(texts(*range(6)), step))
            work(coordinator)
            coordinator.metrics()
        longest = max(longest, whole.journal.path.stat().st_size)
        if step % 10 == 0:
            whole.journal.close()
            after = make_coordinator(Settings(ALLOCATORS["vip"]()), whole.pool, name="whole")
            after.replay()
            whole = after
    assert longest < 60_000 < sum(len(pickle.dumps(p)) for p in plain.pool.committed) * 3
    assert by_uid(whole.pool.committed) == by_uid(plain.pool.committed)
    np.testing.assert_equal(whole.state(), plain.state())
