"""Rollouts, workers and allocators that fail: no round hangs, and the trainer is told of every host once."""

import asyncio
import itertools
from collections import Counter
from dataclasses import replace

import pytest

from apportion import AR3PO, Rollout, Uniform, collect
from apportion.integrations.verl import coordinator as coordinator_module
from apportion.integrations.verl.messages import Order, Publication, Report, place_of
from tests.contract.test_allocators import MAKE
from tests.integrations.verl.crew import (
    ALLOCATORS,
    Crew,
    Settings,
    Table,
    Watched,
    check_rows,
    coordinators,
    died,
    dispatch_of,
    hosts_of,
    opened,
    sampler,
    texts,
    work,
)


@pytest.fixture(params=sorted(ALLOCATORS))
def make(request):
    """Makes one of the allocators, as new at each call."""
    return ALLOCATORS[request.param]


@pytest.fixture
def made(tmp_path):
    with coordinators(tmp_path) as make:
        yield make


@pytest.mark.parametrize("allocator", [MAKE["ar3po"], MAKE["hora"]])
def test_a_silent_worker_does_not_hang_a_round(made, monkeypatch, allocator):
    """One of them says that its rollouts are late, the other says nothing; neither is asked again."""
    monkeypatch.setattr(coordinator_module, "GRACE_SECONDS", 0.02)
    watched, crew = Watched(allocator()), Crew(Table(success=(1.0,)))
    dispatch = dispatch_of(texts(0, 1, 2))

    async def scenario():
        coordinator = made(Settings(watched, deadline_seconds=0.02, retries=5), crew)
        opened(coordinator, dispatch)
        while any(isinstance(task, Order) for _, task in crew.sent.values()):
            for id, (_, task) in list(crew.sent.items()):
                report = crew.carry_out(id)
                if isinstance(task, Order) and task.host == "h1-0":
                    coordinator.report([replace(report, rollouts=report.rollouts[:1], expired=True)])
                elif isinstance(task, Publication) or task.host == "h1-1":
                    coordinator.report([report])
            await asyncio.sleep(0.06)
        work(coordinator)
        coordinator.report([Report("h1-2:1", (Rollout(True),))])
        return coordinator

    coordinator = asyncio.run(asyncio.wait_for(scenario(), 20))
    batch, said = watched.learnt[0], coordinator.metrics()
    assert crew.ordered == batch.asked.sum()
    assert 0 < len(batch.rollouts[0]) < batch.asked[0]
    assert (len(batch.rollouts[1]), len(batch.rollouts[2])) == (batch.asked[1], 0)
    assert said["retried"] == 0 < said["expired"]
    assert {publication.host: publication.status for publication in crew.published} == {
        "h1-0": "finished",
        "h1-1": "finished",
        "h1-2": "failure",
    }
    assert not coordinator._timers


def test_a_worker_that_reports_in_time_is_not_given_up(made, monkeypatch):
    monkeypatch.setattr(coordinator_module, "GRACE_SECONDS", 0.01)
    watched, crew = Watched(Uniform(rollouts_per_prompt=2)), Crew()

    async def scenario():
        coordinator = made(Settings(watched, deadline_seconds=0.01), crew)
        opened(coordinator, dispatch_of(texts(0, 1)))
        coordinator.report([crew.carry_out(id) for id in list(crew.sent)])
        await asyncio.sleep(0.06)
        work(coordinator)

    asyncio.run(scenario())
    assert [len(rollouts) for rollouts in watched.learnt[0].rollouts] == [2, 2]


def test_rollouts_that_begin_anew_have_their_whole_time_again(made, monkeypatch):
    monkeypatch.setattr(coordinator_module, "GRACE_SECONDS", 0.3)
    watched, crew = Watched(Uniform(rollouts_per_prompt=2)), Crew()

    async def scenario():
        coordinator = made(Settings(watched, deadline_seconds=0.3), crew)
        opened(coordinator, dispatch_of(texts(0), workers=["a"]))
        await asyncio.sleep(0.4)
        died(coordinator, "a", ["b"])
        await asyncio.sleep(0.4)
        work(coordinator)

    asyncio.run(scenario())
    assert len(watched.learnt[0].rollouts[0]) == 2


@pytest.mark.parametrize("late", [0, 3, 7])
def test_what_a_dead_worker_held_is_done_by_another(make, made, late):
    """Its rollouts begin anew, under the same sessions; ``late`` reports came before it died."""
    watched, crew = Watched(make()), Crew(Table(failing=0.2))
    coordinator = made(Settings(watched), crew)
    dispatch = dispatch_of(texts(0, 1, 2, 3, 4, 5, 6))
    opened(coordinator, dispatch)
    coordinator.report([crew.carry_out(id) for id in list(crew.sent)[:late]])
    left = {task.host for _, task in crew.sent.values()} & {f"h1-{i}" for i in range(0, 7, 2)}
    before = set(crew.sent)
    died(coordinator, "a", ["b"])
    assert set(crew.sent) == before
    assert {worker for worker, _ in crew.sent.values()} == {"b"}
    assert left <= {host for worker, hosts in crew.moves for host in hosts if worker == "b"}
    work(coordinator)
    fresh = iter(watched.learnt[0].prompts[watched.learnt[0].started :])
    draw = lambda count: list(itertools.islice(fresh, count))  # noqa: E731
    assert watched.learnt[0] == collect(make(), list(dispatch.prompts), sampler(crew.table), source=draw)
    check_rows(crew, crew.published, dispatch)
    assert coordinator.metrics()["moved"] == sum(len(hosts) for _, hosts in crew.moves) > 0


def test_a_dead_workers_rows_are_shared_by_those_that_live(made):
    crew = Crew()
    coordinator = made(Settings(Uniform()), crew)
    whole = dispatch_of(texts(*range(6)), 1, ["a"])
    refills = [dispatch_of(texts(0), step, ["a"]) for step in (2, 3, 4)]
    opened(coordinator, whole, *refills)
    died(coordinator, "a", ["b", "c", "d"])
    assert Counter(worker for worker, _ in crew.sent.values()) == Counter(b=3, c=3, d=3)
    assert Counter(worker for worker, hosts in crew.moves for _ in hosts) == Counter(b=3, c=3, d=3)
    work(coordinator)
    check_rows(crew, crew.published, whole, *refills)


def test_a_worker_that_comes_back_takes_up_what_it_held(made):
    watched, crew = Watched(Uniform()), Crew()
    coordinator = made(Settings(watched), crew)
    dispatch = dispatch_of(texts(0, 1, 2))
    opened(coordinator, dispatch)
    before = dict(crew.sent)
    died(coordinator, "a", ["a"])
    assert crew.sent == before
    assert crew.moves == [("a", ("h1-0", "h1-2"))]
    work(coordinator)
    check_rows(crew, crew.published, dispatch)


@pytest.mark.parametrize("others", [[], ["b"]])
def test_rollouts_whose_rows_are_gone_have_failed(make, made, others):
    """Because nobody lives, or the rows are not at hand any more: the trainer hears of their hosts all the same."""
    watched, crew = Watched(make()), Crew(Table(success=(0.5,)), at_hand=False)
    coordinator = made(Settings(watched, retries=3), crew)
    dispatch = dispatch_of(texts(0, 1, 2, 3, 4))
    opened(coordinator, dispatch)
    coordinator.report([crew.carry_out(next(iter(crew.sent)))])
    died(coordinator, "a", others)
    if not others:
        died(coordinator, "b", [])
    orders = [sent for sent in crew.sent.values() if isinstance(sent[1], Order)]
    assert all(worker == "b" and task.host in ("h1-1", "h1-3") for worker, task in orders)
    assert others or not orders
    work(coordinator)
    check_rows(crew, crew.published, dispatch)
    batch, gone = watched.learnt[0], {"h1-2", "h1-4"} if others else set(hosts_of(dispatch)[1:])
    lost = [q for q, prompt in enumerate(batch.prompts) if place_of(prompt).host in gone]
    assert not any(batch.rollouts[q] for q in lost)
    assert batch.asked[lost].sum() > 0
    assert coordinator.metrics()["retried"] == 0


def test_nobody_is_asked_however_often_an_allocator_asks(made):
    watched, crew = Watched(MAKE["reinforce_ada"]()), Crew()
    watched.inner = replace(watched.inner, rollouts_per_round=1, rounds=5000)
    coordinator = made(Settings(watched), crew)
    opened(coordinator, dispatch_of(texts(0), workers=["a"]))
    died(coordinator, "a", [])
    work(coordinator)
    assert watched.learnt[0].asked.tolist() == [5000]
    assert [publication.status for publication in crew.published] == ["failure"]


@pytest.mark.parametrize("at_hand", [True, False])
def test_a_publication_on_its_way_to_a_worker_that_dies_is_made_by_another(made, at_hand):
    """Rows of earlier steps, which are written anew, need the row of their host."""
    crew = Crew(Table(success=(1.0,)), at_hand=at_hand)
    coordinator = made(Settings(AR3PO(stages=1, reuse="recompute")), crew)
    opened(coordinator, dispatch_of(texts(0, 1), 1))
    work(coordinator)
    crew.table, crew.published = Table(success=(0.0,), seed=1), []
    dispatch = dispatch_of(texts(0, 1), 2)
    opened(coordinator, dispatch)
    work(coordinator, only=lambda task: isinstance(task, Order))
    assert [worker for worker, _ in crew.sent.values()] == ["a", "b"]
    died(coordinator, "a", ["b"])
    assert sorted(worker for worker, _ in crew.sent.values()) == (["b", "b"] if at_hand else ["", "b"])
    work(coordinator)
    check_rows(crew, crew.published, dispatch)
    again = {p.host: sum(row.session is not None for g in p.groups for row in g.rows) for p in crew.published}
    assert again == {"h2-0": int(at_hand), "h2-1": 1}


class Raising(Watched):
    """An allocator whose ``method`` raises where it is given a prompt with ``text``."""

    def __init__(self, inner, method, text):
        super().__init__(inner)
        self.method, self.text = method, text

    def _checked(self, method, given):
        prompts = given if method == "start" else given.prompts
        if method == self.method and any(prompt.text == self.text for prompt in prompts):
            raise ValueError(f"{method} is wrong")
        return getattr(self.inner, method)(given)

    def start(self, prompts):
        return self._checked("start", prompts)

    def plan(self, batch):
        return self._checked("plan", batch)

    def check_rewards(self, batch):
        return self._checked("check_rewards", batch)

    def groups(self, batch):
        return self._checked("groups", batch)

    def metrics(self, batch):
        return self._checked("metrics", batch)

    def observe(self, batch):
        self._checked("observe", batch)
        self.learnt.append(batch)


@pytest.mark.parametrize("method", ["start", "plan", "check_rewards", "groups", "metrics", "observe"])
@pytest.mark.parametrize("inner", [MAKE["uniform"], MAKE["hora"]])
def test_an_allocator_that_raises_ends_its_round_and_no_other(made, caplog, method, inner):
    watched, crew = Raising(inner(), method, "prompt 9"), Crew(Table(success=(0.5,)))
    coordinator = made(Settings(watched), crew)
    bad, good = dispatch_of(texts(0, 9, 2), 1), dispatch_of(texts(3, 4), 2)
    opened(coordinator, good)
    crew.keep(bad)
    coordinator.open(bad)
    work(coordinator)
    for said in (coordinator.metrics, lambda: coordinator.open(dispatch_of(texts(5), 3))):
        with pytest.raises(RuntimeError, match=f"allocation failed at step 1: {method} is wrong"):
            said()
    assert watched.learnt == [collect(inner(), list(good.prompts), sampler(crew.table))]
    status = {publication.host: publication.status for publication in crew.published}
    assert len(crew.published) == len(status) == 5
    assert (status["h2-0"], status["h2-1"]) == ("finished", "finished")
    failed = [host for host in hosts_of(bad) if status[host] == "failure"]
    assert failed == (hosts_of(bad) if not watched.separable or method in ("start", "plan") else failed)
    assert failed and ("h1-1" in failed or method in ("metrics", "observe"))
    assert not crew.kept
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("kind", [Order, Publication])
def test_a_worker_that_says_what_is_wrong_ends_the_round(made, kind):
    watched, crew = Watched(MAKE["uniform"]()), Crew(Table(success=(0.5,)))
    coordinator = made(Settings(watched, retries=9), crew)
    bad, good = dispatch_of(texts(0, 1, 2), 1), dispatch_of(texts(3, 4), 2)
    opened(coordinator, good, bad)
    work(coordinator, only=lambda task: task.host == "h1-1" and not isinstance(task, kind))
    (id,) = [id for id, (_, task) in crew.sent.items() if task.host == "h1-1"]
    del crew.sent[id]
    coordinator.report([Report(id, error="the reward function is broken")])
    work(coordinator)
    with pytest.raises(RuntimeError, match="step 1: the reward function is broken"):
        coordinator.metrics()
    assert len(watched.learnt) == 1
    status = {publication.host: publication.status for publication in crew.published}
    failing = {"h1-0", "h1-1", "h1-2"}
    assert status == {host: "failure" if host in failing else "finished" for host in hosts_of(bad, good)}


def test_a_trainer_that_cannot_be_told_is_told_of_it_once(made):
    """Where nothing can be published, not even that it failed, the message waits in the next call."""
    crew = Crew()
    coordinator = made(Settings(Uniform()), crew)
    opened(coordinator, dispatch_of(texts(0)))
    work(coordinator, only=lambda task: isinstance(task, Order))
    for id in ("h1-0:published", "h1-0:failed"):
        del crew.sent[id]
        coordinator.report([Report(id, error="the queue is gone")])
    assert not crew.sent
    with pytest.raises(RuntimeError, match="the queue is gone"):
        coordinator.metrics()
