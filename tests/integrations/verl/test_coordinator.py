"""What is ordered, published and learnt, for every allocator, against the library's own loop on the same outcomes."""

import itertools
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from apportion import DAPO, VIP, OptPO, Uniform, collect
from apportion.integrations.verl.messages import Order, Report, place_of
from apportion.predictors import DiscountedCounts
from tests.contract.test_allocators import MAKE
from tests.integrations.verl.crew import (
    ALLOCATORS,
    Crew,
    Guests,
    Settings,
    Table,
    Watched,
    batch_of,
    check_rows,
    coordinators,
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


def test_neither_ray_nor_verl_is_needed():
    code = "import apportion.integrations.verl.coordinator, sys; print({'ray', 'verl', 'torch'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


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
    coordinator = replace(made(Settings(DAPO(rollouts_per_prompt=2)), Crew(Table(success=(0.0,)))), guests=None)
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
