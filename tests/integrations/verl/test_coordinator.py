"""What is ordered, published and learnt, for every allocator, against the library's own loop on the same outcomes."""

import asyncio
import itertools
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from apportion import AR3PO, DAPO, VIP, OptPO, Rollout, Uniform, collect
from apportion.allocators import ALLOCATORS
from apportion.consensus import LABEL_FREE
from apportion.integrations.verl import coordinator as coordinator_module
from apportion.integrations.verl.messages import Order, Publication, Report, place_of
from apportion.predictors import DiscountedCounts
from tests.contract.test_allocators import IN_TOKENS, MAKE, in_tokens
from tests.integrations.verl.crew import (
    Crew,
    Guests,
    Settings,
    Table,
    Watched,
    batch_of,
    coordinators,
    died,
    dispatch_of,
    opened,
    sampler,
    texts,
    trained_on,
    work,
)


@pytest.fixture(
    params=[*sorted(ALLOCATORS | LABEL_FREE), *(f"{name} in tokens" for name in IN_TOKENS), "ar3po reusing"]
)
def make(request):
    """Makes one of the allocators, as new at each call."""
    name = request.param
    if name == "ar3po reusing":
        return lambda: AR3PO(stages=2, rollouts_per_stage=3, reuse="recompute")
    allocator = MAKE[name.removesuffix(" in tokens")]
    return (lambda: in_tokens(allocator())) if name.endswith(" in tokens") else allocator


@pytest.fixture
def made(tmp_path):
    with coordinators(tmp_path) as make:
        yield make


def source(guests):
    return lambda count: guests.draw(count, set())


def shown(batch, groups):
    """What is to be published of ``groups``, by name."""
    names = {prompt.id: place_of(prompt).name for prompt in batch.prompts}
    return {
        names[group.prompt.id]: (
            group.rewards.tolist(),
            [rollout.tokens for rollout in group.rollouts],
            [rollout.round for rollout in group.rollouts],
            [(i, r.completion.digest, r.step is None) for i, r in enumerate(group.rollouts) if group.keep[i]],
        )
        for group in groups
    }


def published(publications):
    return {
        group.name: (
            list(group.rewards),
            list(group.tokens),
            list(group.rounds),
            [(row.place, row.written.digest, row.session is None) for row in group.rows],
        )
        for publication in publications
        for group in publication.groups
    }


def hosts_of(*dispatches):
    return [place_of(prompt).host for dispatch in dispatches for prompt in dispatch.prompts]


def check_rows(crew, publications, *dispatches):
    """Each host is published once; its rows are those that are trained on, written once, and no others."""
    assert sorted(publication.host for publication in publications) == sorted(hosts_of(*dispatches))
    keys = trained_on(publications)
    assert len(keys) == len(set(keys))
    assert set(keys) == {key for host in hosts_of(*dispatches) for key in crew.rows[host]}
    assert set(crew.written.values()) <= {1}
    assert all(key.startswith(f"{host}_") for host in crew.rows for key in crew.rows[host])


@pytest.mark.parametrize(("failing", "retries"), [(0.0, 1), (0.3, 0), (0.3, 2)])
def test_a_round_is_what_the_librarys_loop_collects(make, made, failing, retries):
    watched, alone, crew = Watched(make()), make(), Crew()
    coordinator, guests, rng = made(Settings(watched, retries=retries), crew), Guests(), np.random.default_rng(0)
    for step in range(1, 5):
        crew.table, crew.published = Table(failing=failing, seed=step), []
        crew.ordered = 0
        dispatch = dispatch_of(texts(0, 1, 2, 3, 4, 5, 6), step)
        opened(coordinator, dispatch)
        work(coordinator, rng)
        batch = collect(alone, list(dispatch.prompts), sampler(crew.table, retries), source=source(guests))
        assert watched.learnt[-1] == batch
        assert published(crew.published) == shown(watched.learnt[-1], alone.groups(batch))
        check_rows(crew, crew.published, dispatch)
        said = coordinator.metrics()
        assert said["rollouts"] == batch.asked.sum()
        assert said["failed"] == batch.asked.sum() - sum(map(len, batch.rollouts))
        assert said["retried"] == crew.ordered - batch.asked.sum()
        assert (said["dispatches"], said["fillers"]) == (1, 0)
        assert said.items() >= alone.metrics(batch).items()
        alone.observe(batch)
        np.testing.assert_equal(watched.state_dict(), alone.state_dict())
    assert coordinator.metrics() == {}
    assert not crew.kept


def test_dispatches_under_way_together_have_budgets_of_their_own(make, made):
    watched, crew = Watched(make()), Crew(Table(failing=0.1))
    coordinator = made(Settings(watched), crew)
    dispatches = [dispatch_of(texts(*range(size)), step) for step, size in enumerate((7, 1, 4, 1, 2, 1))]
    opened(coordinator, *dispatches[:4])
    coordinator.report([crew.carry_out(id) for id in list(crew.sent)[:3]])
    opened(coordinator, *dispatches[4:])
    work(coordinator, np.random.default_rng(1))
    check_rows(crew, crew.published, *dispatches)
    assert len(watched.learnt) == len(dispatches)
    for dispatch in dispatches:
        alone, batch, size = make(), batch_of(watched, dispatch), len(dispatch.prompts)
        fresh = iter(batch.prompts[batch.started :])
        prompts, draw = list(dispatch.prompts), lambda count, fresh=fresh: list(itertools.islice(fresh, count))
        assert batch == collect(alone, prompts, sampler(crew.table), source=draw)
        assert batch.asked.sum() <= alone.most_asked(size)
        if alone.fixed_total:
            assert batch.asked.sum() == alone.most_asked(size)
    said = coordinator.metrics()
    assert said["dispatches"] == len(dispatches)
    assert said["rollouts"] == sum(batch.asked.sum() for batch in watched.learnt)


def test_guests_have_rows_of_a_host_and_names_and_sessions_of_their_own(made):
    crew = Crew(Table(success=(0.3,)))
    coordinator = made(Settings(Watched(DAPO(rollouts_per_prompt=3, target=8))), crew)
    dispatch = dispatch_of(texts(100, 103, 101))
    opened(coordinator, dispatch)
    work(coordinator)
    batch = coordinator.allocation.allocator.learnt[0]
    assert len({prompt.id for prompt in batch.prompts}) == len(batch.prompts)
    guests = [place_of(prompt) for prompt in batch.prompts[batch.started :]]
    assert len(guests) > 6
    assert Counter(place.host for place in guests) == Counter(hosts_of(dispatch) * (len(guests) // 3))
    assert len({place.name for place in guests} | set(hosts_of(dispatch))) == len(batch.prompts)
    check_rows(crew, crew.published, dispatch)
    trained = {group.name for publication in crew.published for group in publication.groups}
    assert trained & {place.name for place in guests}


def test_fresh_prompts_without_a_data_set_are_an_error_that_names_the_allocator(made):
    coordinator = made(Settings(DAPO(rollouts_per_prompt=2)), Crew(Table(success=(0.0,))))
    coordinator.guests = None
    coordinator.__post_init__()
    opened(coordinator, dispatch_of(texts(0)))
    work(coordinator)
    with pytest.raises(RuntimeError, match="dapo draws fresh prompts"):
        coordinator.metrics()


def test_a_straggler_holds_up_its_own_prompt_or_those_that_share_its_budget(make, made):
    allocator, crew = Watched(make()), Crew(Table(success=(0.5,)))
    coordinator = made(Settings(allocator), crew)
    dispatch = dispatch_of(texts(0, 1, 2, 3, 4, 5))
    opened(coordinator, dispatch)
    straggler = next(iter(crew.sent.values()))[1].host
    work(coordinator, only=lambda task: task.host != straggler)
    assert {task.host for _, task in crew.sent.values()} == {straggler}
    others = sorted(set(hosts_of(dispatch)) - {straggler})
    assert sorted(publication.host for publication in crew.published) == (others if allocator.separable else [])
    work(coordinator)
    check_rows(crew, crew.published, dispatch)


def test_prompts_without_anything_to_train_on_wait_for_one_that_has(made):
    crew = Crew(Table(success=(0.0, 1.0)))
    coordinator = made(Settings(DividedVotes()), crew)
    dispatch = dispatch_of(texts(0, 2, 1, 4))
    opened(coordinator, dispatch)
    work(coordinator, only=lambda task: task.host != "h1-2")
    assert not crew.published
    work(coordinator)
    check_rows(crew, crew.published, dispatch)
    assert {publication.host for publication in crew.published if publication.groups} == {"h1-2"}
    assert coordinator.metrics()["fillers"] == 0


@pytest.mark.parametrize("reported", [("h1-0", "h1-1", "h1-2"), ("h1-2", "h1-1", "h1-0")])
def test_a_round_without_anything_to_train_on_has_one_row_without_an_advantage(made, reported):
    """Also where the prompt that is done last has no rollout at all."""
    crew = Crew(Table(success=(0.0,)))
    coordinator = made(Settings(DividedVotes()), crew)
    dispatch = dispatch_of(texts(0, 1, 2))
    opened(coordinator, dispatch)
    for host in reported:
        crew.table = Table(success=(0.0,), failing=float(host == "h1-0"))
        work(coordinator, only=lambda task, host=host: task.host == host)
    work(coordinator)
    check_rows(crew, crew.published, dispatch)
    groups = [group for publication in crew.published for group in publication.groups]
    assert [(group.rewards, len(group.rows), group.rewarded) for group in groups] == [((0.0,), 1, False)]
    assert {publication.host: publication.status for publication in crew.published} == {
        "h1-0": "failure",
        "h1-1": "finished",
        "h1-2": "finished",
    }
    said = coordinator.metrics()
    assert (said["fillers"], said["groups"]) == (1, 0)


class DividedVotes(Uniform):
    """Trains on prompts of which all rollouts are right."""

    def groups(self, batch):
        return [group for group in super().groups(batch) if all(rollout.correct for rollout in group.rollouts)]


def test_a_round_of_which_all_rollouts_fail_ends(make, made):
    watched, crew = Watched(make()), Crew(Table(failing=1.0))
    coordinator = made(Settings(watched, retries=1), crew)
    dispatch = dispatch_of(texts(0, 1, 2))
    opened(coordinator, dispatch)
    work(coordinator)
    assert [publication.status for publication in crew.published] == ["failure"] * 3
    assert not any(publication.groups for publication in crew.published)
    assert watched.learnt[0].asked.sum() > 0 == sum(map(len, watched.learnt[0].rollouts))
    assert coordinator.metrics()["fillers"] == 0


def test_votes_reward_rows_and_verdicts_do_not(made):
    for allocator, rewarded in ((Uniform(), False), (MAKE["ttrl"](), True)):
        crew = Crew(Table(success=(0.9,)))
        coordinator = made(Settings(allocator), crew, name=allocator.name)
        opened(coordinator, dispatch_of(texts(0, 1)))
        work(coordinator)
        assert {group.rewarded for publication in crew.published for group in publication.groups} == {rewarded}


def test_an_order_tells_the_answers_so_far_where_votes_count(made):
    crew = Crew(Table(success=(0.4,), failing=0.2))
    coordinator = made(Settings(OptPO(min_samples=4, max_samples=16, wave=4), retries=1), crew)
    opened(coordinator, dispatch_of(texts(0)))
    given: list[str | None] = []
    while crew.sent:
        (id, (_, task)) = next(iter(crew.sent.items()))
        if isinstance(task, Order):
            assert task.answers == tuple(dict.fromkeys(answer for answer in given if answer is not None))
        report = crew.carry_out(id)
        given += [rollout.answer for rollout in report.rollouts]
        coordinator.report([report])
    assert len(set(given)) > 2


def test_what_fails_is_tried_again_and_charged_once(made):
    failing = {0, 1, 4, 6}

    class Stubborn(Crew):
        def sampled(self, order):
            report = super().sampled(order)
            return replace(report, rollouts=tuple(r for r in report.rollouts if r.completion.session not in failing))

    for retries, arrived in ((0, 2), (1, 3), (2, 3), (3, 4), (9, 4)):
        crew, watched = Stubborn(), Watched(Uniform(rollouts_per_prompt=4))
        coordinator = made(Settings(watched, retries=retries), crew, name=f"{retries}")
        opened(coordinator, dispatch_of(texts(0)))
        orders = []
        while crew.sent:
            orders += [task.sessions for _, task in crew.sent.values() if isinstance(task, Order)]
            coordinator.report([crew.carry_out(next(iter(crew.sent)))])
        assert orders == [(0, 1, 2, 3), (4, 5), (6,), (7,)][: 1 + retries]
        assert (watched.learnt[0].asked.tolist(), len(watched.learnt[0].rollouts[0])) == ([4], arrived)
        assert coordinator.metrics()["failed"] == 4 - arrived


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


def test_a_size_that_cannot_be_planned_is_refused_before_the_round(made):
    coordinator = made(Settings(VIP(budget=8, predictor=DiscountedCounts())), Crew())
    with pytest.raises(ValueError, match="budget"):
        opened(coordinator, dispatch_of(texts(*range(20))))
    opened(coordinator, dispatch_of(texts(0, 1)))
    work(coordinator)
    assert coordinator.metrics()["rollouts"] == 8


def test_a_dispatch_is_opened_once(made):
    """Ray repeats a call whose actor died before it answered."""
    watched, crew = Watched(Uniform()), Crew()
    coordinator = made(Settings(watched), crew)
    dispatch = dispatch_of(texts(0, 1))
    opened(coordinator, dispatch, dispatch)
    work(coordinator)
    opened(coordinator, dispatch)
    work(coordinator)
    assert len(watched.learnt) == 1
    check_rows(crew, crew.published, dispatch)


def test_reports_that_nobody_waits_for_are_left_aside(made):
    watched, crew = Watched(Uniform(rollouts_per_prompt=2)), Crew()
    coordinator = made(Settings(watched), crew)
    opened(coordinator, dispatch_of(texts(0)))
    report = crew.carry_out("h1-0:1")
    coordinator.report([Report("h9-9:1"), report, replace(report, rollouts=())])
    coordinator.report([report])
    work(coordinator)
    assert watched.learnt[0].rollouts[0] == tuple(replace(r, round=0) for r in report.rollouts)
    assert coordinator.metrics()["retried"] == 0


def test_the_cost_of_a_report_does_not_grow_with_the_round(make, made):
    """Function calls in the process, counted: what all prompts plan together is done once a wave."""

    def calls(size):
        crew = Crew(Table(success=(0.5,)))
        coordinator = made(Settings(make()), crew, name=f"{size}")
        opened(coordinator, dispatch_of(texts(*range(size))))
        if not coordinator.allocation.allocator.separable:
            coordinator.report([crew.carry_out(next(iter(crew.sent)))])
        report, count = crew.carry_out(next(iter(crew.sent))), 0

        def counted(frame, event, arg):
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(counted)
        coordinator.report([report])
        sys.setprofile(None)
        return count

    assert calls(400) < 1.2 * calls(20)
