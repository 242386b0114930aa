"""A coordinator that dies goes on where it was: from a checkpoint with what was learnt, from its journal with all."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion import Uniform
from apportion.integrations.verl import journal as journal_module
from apportion.integrations.verl.journal import Journal
from apportion.integrations.verl.messages import Dispatch, Logged, Moved, Order, place_of
from tests.integrations.verl.crew import (
    ALLOCATORS,
    Crew,
    Settings,
    Table,
    Watched,
    coordinators,
    died,
    dispatch_of,
    opened,
    texts,
    trained_on,
    work,
)

TORN = st.sampled_from([0.0, 0.01, 0.5, 0.99])


@pytest.fixture
def made(tmp_path):
    with coordinators(tmp_path) as make:
        yield make


def ran(coordinator, step, numbers=(0, 1, 2, 3, 4, 5, 6), seed=0):
    """Publications of a whole round."""
    crew = coordinator.crew
    crew.table, crew.published = Table(failing=0.1, seed=step), []
    opened(coordinator, dispatch_of(texts(*numbers), step))
    work(coordinator, np.random.default_rng(seed))
    return sorted(crew.published, key=lambda publication: publication.host)


@pytest.mark.parametrize("kind", sorted(ALLOCATORS))
def test_a_run_that_is_resumed_between_rounds_goes_on_as_the_one_that_was_not(made, kind):
    whole = made(Settings(ALLOCATORS[kind](), retries=1), Crew(), name="whole")
    for step in (1, 2):
        ran(whole, step)
    state = pickle.loads(pickle.dumps(whole.state()))
    resumed = made(Settings(ALLOCATORS[kind](), retries=1), Crew(), name="resumed")
    resumed.load(state)
    for step in (3, 4):
        assert ran(resumed, step, seed=1) == ran(whole, step)
    np.testing.assert_equal(resumed.state(), whole.state())


@pytest.mark.parametrize("kind", sorted(name for name, make in ALLOCATORS.items() if make().separable))
def test_a_run_that_is_resumed_within_a_round_has_learnt_what_was_published(made, kind):
    """The trainer dispatches the rest of it again."""
    table = Table(success=(0.5,))
    whole, resumed = (
        made(Settings(Watched(ALLOCATORS[kind]())), Crew(table), name=name) for name in ("whole", "resumed")
    )
    dispatch = dispatch_of(texts(0, 1, 2, 3, 4, 5))
    opened(whole, dispatch)
    work(whole, only=lambda task: task.host in ("h1-0", "h1-3"))
    work(whole, only=lambda task: task.host == "h1-5" and isinstance(task, Order))
    resumed.load(pickle.loads(pickle.dumps(whole.state())))
    (part,) = resumed.allocation.allocator.learnt
    assert [prompt.text for prompt in part.prompts] == texts(0, 3)
    rest = [i for i in range(6) if i not in (0, 3)]
    again = Dispatch(2, tuple(dispatch.prompts[i] for i in rest), tuple("abab"))
    opened(resumed, again)
    work(resumed)
    work(whole)
    (batch,), rest = whole.allocation.allocator.learnt, resumed.allocation.allocator.learnt[1]
    found = dict(zip((p.text for p in part.prompts + rest.prompts), part.rollouts + rest.rollouts, strict=True))
    assert found == dict(zip((p.text for p in batch.prompts), batch.rollouts, strict=True))
    later = dispatch_of(texts(*range(6)), 3)
    for coordinator in (whole, resumed):
        coordinator.crew.table, coordinator.crew.ordered = Table(success=(0.1,), seed=1), 0
        opened(coordinator, later)
        work(coordinator)
    assert whole.crew.ordered == resumed.crew.ordered
    assert whole.allocation.allocator.learnt[-1] == resumed.allocation.allocator.learnt[-1]


def test_the_state_of_another_allocator_is_refused(made):
    state = made(Settings(ALLOCATORS["vip"]()), Crew()).state()
    with pytest.raises(ValueError, match="same allocator, uniform, got that of vip; resume"):
        made(Settings(Uniform()), Crew(), name="other").load(state)


class Kept(Journal):
    """A journal of which all records, and the file after each of them, can be read afterwards."""

    def __init__(self, path):
        super().__init__(path)
        self.records, self.files = [], []

    def write(self, record):
        super().write(record)
        self.records.append(record)
        self.files.append(self.path.read_bytes())

    def restart(self, state):
        super().restart(state)
        if self.files:
            self.files[-1] = self.path.read_bytes()


class Noted(Crew):
    """A crew that knows after how many records it was sent what."""

    def __init__(self, table):
        super().__init__(table)
        self.records, self.log = [], []

    def send(self, worker, task):
        super().send(worker, task)
        self.log.append((len(self.records), worker, task))


def outstanding(log, records):
    """What is sent and not reported after ``records``: worker and task by id."""
    found = {}
    for after, worker, task in log:
        if after <= len(records):
            found[task.id] = (worker, task)
    for number, record in enumerate(records, start=1):
        if isinstance(record, tuple):
            for report in record:
                found.pop(report.id, None)
        if isinstance(record, Moved) and not record.worker:
            sent = {task.id for after, _, task in log if after < number and isinstance(task, Order)}
            found = {id: each for id, each in found.items() if not (id in sent and each[1].host in record.hosts)}
    return found


def told(crew, records):
    """The publications of ``crew`` that ``records`` confirm."""
    reported = {report.id for record in records if isinstance(record, tuple) for report in record}
    return [publication for publication in crew.published if publication.id in reported]


def by_host(publications):
    """Publications and the keys that they train on, by host; each host is published once."""
    found = {publication.host: (publication, trained_on([publication])) for publication in publications}
    assert len(found) == len(publications)
    return found


def restarted(coordinator, journal, torn):
    """Replays ``journal``, which ends in the first bytes of a record, a share ``torn`` of it."""
    begun = pickle.dumps(dispatch_of(texts(0, 1, 2)))
    coordinator.journal.path.write_bytes(journal + begun[: int(torn * len(begun))])
    coordinator.replay()


def dispatches(rng, count):
    sizes = rng.integers(1, 5, size=count)
    return [
        dispatch_of(texts(*rng.choice(7, size=size, replace=False)), step) for step, size in enumerate(sizes, start=1)
    ]


def acted(coordinator, rng, waiting, deaths):
    """One thing that may happen to a coordinator: reports, a dispatch, a worker's death, a look at the metrics."""
    crew, what = coordinator.crew, rng.random()
    if waiting and (what < 0.3 or not crew.sent):
        opened(coordinator, waiting.pop(0))
    elif what < 0.4:
        worker, others = [("a", ["b"]), ("b", ["a"]), ("a", ["a"]), ("b", [])][rng.integers(4)]
        crew.at_hand = bool(rng.random() < 0.7)
        number = len(coordinator.journal.records)
        deaths[number] = (worker, others, crew.at_hand)
        died(coordinator, worker, others)
    elif what < 0.45:
        coordinator.metrics()
    elif what < 0.5:
        coordinator.state()
    elif crew.sent:
        some = rng.choice(list(crew.sent), size=int(rng.integers(1, 4)))
        coordinator.report([crew.carry_out(str(id)) for id in dict.fromkeys(some)])


def again(coordinator, record, death):
    """Has ``record`` happen to a coordinator."""
    if isinstance(record, Dispatch):
        coordinator.open(record)
    elif isinstance(record, Logged):
        coordinator.metrics()
    elif isinstance(record, Moved):
        worker, others, coordinator.crew.at_hand = death
        died(coordinator, worker, others)
    else:
        for report in record:
            task = coordinator.crew.sent.pop(report.id)[1]
            if not isinstance(task, Order):
                coordinator.crew.told(task)
        coordinator.report(record)


@settings(max_examples=150)
@given(kind=st.sampled_from(sorted(ALLOCATORS)), seed=st.integers(0, 10**6), retries=st.integers(0, 2), data=st.data())
def test_a_coordinator_that_is_restarted_is_where_the_last_one_was(tmp_path_factory, kind, seed, retries, data):
    """Whatever the last record was, half a record after it or none: the same tasks, groups, metrics, and learning."""
    folder, rng, deaths = tmp_path_factory.mktemp("journals"), np.random.default_rng(seed), {}
    with coordinators(folder) as made:
        allocator = Watched(ALLOCATORS[kind]())
        whole = made(Settings(allocator, retries=retries), Noted(Table(failing=0.2, seed=seed)), "whole", Kept)
        whole.crew.records = whole.journal.records
        waiting = dispatches(rng, 4)
        hosts = {place_of(prompt).host: prompt.text for dispatch in waiting for prompt in dispatch.prompts}
        while waiting or whole.crew.sent:
            acted(whole, rng, waiting, deaths)
        last, records = whole.metrics(), whole.journal.records
        cut = data.draw(st.integers(1, len(records)), label="records before the restart")
        resumed = made(Settings(Watched(ALLOCATORS[kind]()), retries=retries), Crew(texts=hosts), name="resumed")
        restarted(resumed, whole.journal.files[cut - 1], data.draw(TORN))
        assert resumed.crew.sent == outstanding(whole.crew.log, records[:cut])
        ended = None
        for number, record in enumerate(records[cut:], start=cut):
            if isinstance(record, Logged) and number == len(records) - 1:
                ended = resumed.metrics()
            else:
                again(resumed, record, deaths.get(number))
        before, after = by_host(told(whole.crew, records[:cut])), by_host(resumed.crew.published)
        assert not before.keys() & after.keys()
        assert before | after == by_host(whole.crew.published)
        assert not resumed.crew.sent
        assert ended in (None, last)
        assert resumed.guests.drawn == whole.guests.drawn
        learnt = resumed.allocation.allocator.learnt
        assert learnt == allocator.learnt[len(allocator.learnt) - len(learnt) :]
        np.testing.assert_equal(resumed.state(), whole.state())


@settings(max_examples=60)
@given(kind=st.sampled_from(sorted(ALLOCATORS)), seed=st.integers(0, 10**6), data=st.data())
def test_workers_that_go_on_in_another_order_after_a_restart_change_nothing(tmp_path_factory, kind, seed, data):
    """One round after the other, as a synchronous trainer dispatches them."""
    rng, waiting = np.random.default_rng(seed), dispatches(np.random.default_rng(seed), 3)
    hosts = {place_of(prompt).host: prompt.text for dispatch in waiting for prompt in dispatch.prompts}
    with coordinators(tmp_path_factory.mktemp("journals")) as made:
        crews = [Crew(Table(failing=0.2, seed=seed), texts=dict(hosts)) for _ in range(2)]
        whole = made(Settings(ALLOCATORS[kind](), retries=1), crews[0], "whole", Kept)
        for dispatch in waiting:
            opened(whole, dispatch)
            work(whole, rng)
        records = whole.journal.records
        cut = data.draw(st.integers(1, len(records)), label="records before the restart")
        resumed = made(Settings(ALLOCATORS[kind](), retries=1), crews[1], "resumed")
        restarted(resumed, whole.journal.files[cut - 1], data.draw(TORN))
        work(resumed, rng)
        for dispatch in [dispatch for dispatch in waiting if dispatch in records[cut:]]:
            opened(resumed, dispatch)
            work(resumed, rng)
        before, after = by_host(told(whole.crew, records[:cut])), by_host(resumed.crew.published)
        assert not before.keys() & after.keys()
        assert before | after == by_host(whole.crew.published)
        np.testing.assert_equal(resumed.state(), whole.state())
        assert resumed.metrics() == whole.metrics()


def test_a_long_journal_begins_anew_and_nothing_is_lost(made, monkeypatch):
    monkeypatch.setattr(journal_module, "LARGE_BYTES", 20_000)
    whole, plain = (made(Settings(ALLOCATORS["vip"]()), Crew(), name=name) for name in ("whole", "plain"))
    longest = 0
    for step in range(1, 30):
        for coordinator in (whole, plain):
            opened(coordinator, dispatch_of(texts(*range(6)), step))
            work(coordinator)
            coordinator.metrics()
        longest = max(longest, whole.journal.path.stat().st_size)
        if step % 10 == 0:
            whole.journal.close()
            after = made(Settings(ALLOCATORS["vip"]()), whole.crew, name="whole")
            after.replay()
            whole = after
    assert longest < 60_000 < sum(len(pickle.dumps(p)) for p in plain.crew.published) * 3
    assert by_host(whole.crew.published) == by_host(plain.crew.published)
    np.testing.assert_equal(whole.state(), plain.state())
