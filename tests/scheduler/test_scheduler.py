"""A stream of rollouts: it plans as batches do behind a barrier, keeps its bounds, and loses nothing."""

import asyncio
import copy
import io
import itertools
import json
from collections import Counter
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from apportion import HORA, VIP, Knapsack, Neyman, Prompt, Rollout, Uniform, collect
from apportion.allocators import ALLOCATORS
from apportion.baselines import SPO, Optimal
from apportion.predictors import MeanLengths, ScoreMoments
from apportion.scheduler import (
    OfferedScheduler,
    Prompts,
    Rows,
    RunDecisions,
    Scheduler,
    Selected,
    TrainerAllocation,
    stream_groups,
)
from apportion.selection import Mixed, ShuffledEpochs, SPOWeights
from tests.builders import make_prompts
from tests.cases import assert_refused
from tests.rules import MAKE, small
from tests.soak import case

PRICED = {
    "vip": lambda: VIP(rollouts_per_prompt=8, high=32),
    "vip, dr_grpo": lambda: VIP(estimator="dr_grpo", rollouts_per_prompt=7.5, high=16),
    "knapsack": lambda: Knapsack(rollouts_per_prompt=8, high=32),
    "neyman": lambda: Neyman(rollouts_per_prompt=8, high=32, predictor=VIP().predictor),
    "hora": lambda: HORA(rollouts_per_prompt=8, pre_rollouts=4, high=24),
    "vip, tokens": lambda: VIP(tokens_per_prompt=360, lengths=MeanLengths(initial=45), high=32),
    "hora, tokens": lambda: HORA(tokens_per_prompt=360, lengths=MeanLengths(initial=45), pre_rollouts=2, high=32),
}


def sampler():
    """Return a sampler that gives each prompt its outcomes in order."""
    done = Counter()

    def sample(prompts, counts):
        found = []
        for prompt, count in zip(prompts, counts, strict=True):
            made = [outcome(prompt, done[prompt.id] + i) for i in range(count)]
            done[prompt.id] += int(count)
            found.append([rollout for rollout in made if rollout is not None])
        return found

    return sample


def run(rule, selection=None):
    return RunDecisions(allocator=rule, selection=selection)


class InOrder(ShuffledEpochs):
    """A selection that takes the prompts as they are."""

    def _next_place(self):
        self._drawn += 1
        return (self._drawn - 1) % len(self._ids)


def outcome(prompt, rollout, seed=0):
    """The same outcome for the same rollout of the same prompt, in any order and any driver."""
    place = int(prompt.id.strip("p") or 0) if prompt.id.strip("p").isdigit() else sum(prompt.text.encode())
    rng = np.random.default_rng([seed, place, rollout])
    if rng.random() < 0.1:
        return None
    return Rollout(bool(rng.random() < (place % 7) / 6), answer=str(rng.integers(2)), tokens=int(rng.integers(1, 90)))


def sampled(ticket):
    return outcome(ticket.prompt, ticket.rollout)


def events(stream, slots, answer=sampled, seed=0):
    """Yield the decisions of ``stream``. After each it has trained on its update, and gets a result of random order."""
    rng, running = np.random.default_rng(seed), []
    for now in itertools.count():
        decision = stream.decide(slots - len(running), float(now))
        running += decision.requests
        assert len(running) <= slots
        yield decision
        if decision.update is not None:
            assert max(decision.update.ages, default=0) <= stream.due.age_bound
            stream.trained(decision.update.version)
        elif not running:
            return
        if running:
            ticket = running.pop(int(rng.integers(len(running))))
            stream.arrived(ticket, answer(ticket))


def in_one_go(stream, updates, slots=5, answer=sampled):
    """Return the groups of each update of ``stream``."""
    found = (list(decision.update.groups) for decision in events(stream, slots, answer) if decision.update)
    return list(islice(found, updates))


@pytest.mark.parametrize("name", ALLOCATORS)
def test_a_full_barrier_gives_the_groups_of_a_batch(name):
    prompts, batch = make_prompts(28), 7
    rest = iter(prompts[batch:])
    rule = MAKE[name]()
    whole = collect(rule, prompts[:batch], sampler(), source=lambda count: list(islice(rest, count)))
    kept = rule.groups(whole)
    stream = Scheduler(run(MAKE[name](), InOrder()), prompts, Rows(1, 0), batch=batch, attempts=1)
    asked = Counter()
    for now in range(2_000):
        decision = stream.decide(3, float(now))
        if decision.update or not decision.requests:
            break
        for ticket in reversed(decision.requests):
            asked[ticket.prompt.id] += 1
            stream.arrived(ticket, outcome(ticket.prompt, ticket.rollout))
    assert list(decision.update.groups) == kept
    assert [asked[prompt.id] for prompt in whole.prompts] == whole.asked.tolist()


@pytest.mark.parametrize("name", sorted(name for name, rule in ALLOCATORS.items() if rule.separable))
def test_a_separable_rule_gives_the_groups_of_each_prompt_alone(name):
    prompts = make_prompts(12)
    stream = Scheduler(MAKE[name](), prompts, Rows(8), attempts=1)
    groups = {group.prompt.id: group for update in in_one_go(stream, updates=3) for group in update}
    assert groups
    for group in groups.values():
        rule = MAKE[name]()
        alone = rule.groups(collect(rule, [group.prompt], sampler()))
        assert [g.rollouts for g in alone] == [group.rollouts]


MIXED = ("vip", "hora, tokens")
BOTH = [case(name, own, suite=(name in MIXED) == own) for name in [*PRICED, "uniform"] for own in (False, True)]
"""Each rule alone or beside a selection. The soak has both."""


@pytest.mark.parametrize(("name", "selection"), BOTH[:-2])
def test_the_budget_is_kept_within_its_slack_at_any_time(name, selection):
    rule = PRICED[name]()
    slack = 40.0 * (1 if rule.lengths is None else rule.lengths.initial)
    stream = Scheduler(run(rule, Mixed() if selection else None), make_prompts(90), Rows(96), slack=slack)
    granted, spent = Counter(), Counter()

    def answer(ticket):
        result = outcome(ticket.prompt, ticket.rollout, seed=stream.version)
        spent[ticket.unit] += 0 if result is None else result.tokens
        return result

    for decision in islice(events(stream, 24, answer), 5_000):
        granted.update(ticket.unit for ticket in decision.requests if ticket.attempt == 0)
        assert abs(stream.carry) <= slack
    spent = [spent[n] for n in range(max(granted)) if n not in stream._units]
    done = [granted[n] for n in range(max(granted)) if n not in stream._units]
    assert len(done) > 300
    if rule.lengths is not None:
        used = sum(spent) / len(spent)
        assert used == pytest.approx(rule.tokens_per_prompt, rel=0.1) and len(set(done)) > 4
    elif name != "hora":  # every prompt that was opened is decided, so the carry is exactly the deviation
        asked = sum(granted.values()) + sum(entry[5] == 0 for entry in stream._queue)
        assert asked - rule.rollouts_per_prompt * stream.counts["opened"] == pytest.approx(stream.carry)
        assert max(done[:8]) - min(done[:8]) <= 1  # all beliefs are equal at first
    assert rule.least <= min(done) and max(done) <= rule.high


def test_equal_gains_are_shared_by_the_carry():
    stream = Scheduler(VIP(rollouts_per_prompt=4.25), make_prompts(80), Rows(340))
    tickets = stream.decide(170, 0.0).requests
    counts = Counter(ticket.unit for ticket in tickets)
    assert [counts[n] for n in range(39)] == [4, 4, 5, 4] * 9 + [4, 4, 5]
    assert abs(stream.carry) <= 0.5


def test_an_old_prompt_gets_its_last_rollouts_before_a_new_one_opens():
    stream = Scheduler(HORA(rollouts_per_prompt=4, pre_rollouts=2), make_prompts(9), Rows(64))
    first = stream.decide(4, 0.0).requests
    for ticket in first[:2]:
        stream.arrived(ticket, Rollout(False))
    assert {ticket.unit for ticket in stream.decide(1, 0.0).requests} == {0}


@pytest.mark.parametrize("age_bound", [0, 1, 3])
def test_no_group_is_older_than_the_bound_and_every_prompt_opened_is_trained(age_bound):
    stream = Scheduler(small("hora"), make_prompts(40), Rows(36, age_bound), Selected(seed=1), attempts=1)
    found = in_one_go(stream, updates=20, slots=30)
    assert len(found) == 20
    opened = stream.counts["opened"]
    assert sum(map(len, found[:-1])) + len(stream._units) == opened  # the last one is not trained
    assert all(36 <= sum(len(group.rollouts) for group in update) <= 2 * 36 for update in found[1:])


def fault(seed):
    """Run a stream under every fault at once, and beside it one that is saved and loaded at random events."""
    rng = np.random.default_rng(seed)
    names = [*PRICED, "uniform", "dars", "reinforce_ada"]
    name = names[seed % len(names)]

    def make():
        rule = PRICED[name]() if name in PRICED else small(name)
        selection = Mixed() if seed % 3 == 0 else None
        return Scheduler(run(rule, selection), prompts, Rows(40, seed % 4), Selected(seed=seed), patience=30.0)

    prompts = make_prompts(30)
    stream = make()
    running, late, trained, answered = [], [], Counter(), Counter()
    now = 0.0
    for _ in range(700):
        now += float(rng.exponential(0.5))
        if rng.random() < 0.03:  # killed: what was saved goes on
            stream = reloaded(make, stream)
            if rng.random() < 0.5:
                stream.restarted()
                late += running
                running = []
        free = max(0, 24 - len(running))
        decision = stream.decide(free, now)
        assert len(decision.requests) <= free
        running = [t for t in running if t not in decision.cancelled] + list(decision.requests)
        late += decision.cancelled
        if decision.update:
            assert max(decision.update.ages, default=0) <= stream.due.age_bound
            trained.update(f"{stream.version} {group.prompt.id}" for group in decision.update.groups)
            assert stream.trained(decision.update.version)
            assert not stream.trained(decision.update.version)  # doubled
        kind = rng.random()
        if kind < 0.1 and late:
            assert not stream.arrived(late[int(rng.integers(len(late)))], Rollout(True))
        elif kind < 0.13:
            pass  # a slot hangs
        elif running:
            ticket = running.pop(int(rng.integers(len(running))))
            result = None if rng.random() < 0.1 else outcome(ticket.prompt, ticket.rollout, seed)
            assert stream.arrived(ticket, result)
            answered[ticket.number] += 1
            assert not stream.arrived(ticket, result)  # doubled
            late.append(ticket)
    assert stream.version > 1
    assert max(answered.values()) == 1 and max(trained.values()) == 1
    known = {ticket.number for ticket in stream.outstanding}
    assert known == {ticket.number for ticket in running}  # nothing is lost
    for unit in stream._units.values():
        if unit.number not in stream._finished and unit.number not in stream._training:
            waiting = sum(entry[2] == unit.number for entry in stream._queue)
            assert unit.missing == waiting + sum(ticket.unit == unit.number for ticket in stream.outstanding)


@pytest.mark.parametrize("seed", [case(seed, suite=seed < 12) for seed in range(100)])
def test_faults_lose_nothing_and_train_nothing_twice(seed):
    fault(seed)


def reloaded(make, stream):
    """Return a new stream with the state of ``stream``."""
    found = make()
    found.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    return found


class Twins:
    """A stream, and another one that is saved and loaded every seventh time. Both must decide the same."""

    def __init__(self, make):
        self.make, self.whole, self.again = make, make(), make()
        self.due, self.decided = self.whole.due, 0

    def decide(self, free, now):
        if self.decided % 7 == 0:
            self.again = reloaded(self.make, self.again)
        self.decided += 1
        return self.both("decide", free, now)

    def trained(self, version):
        return self.both("trained", version)

    def arrived(self, ticket, result):
        return self.both("arrived", ticket, result)

    def both(self, method, *given):
        found = getattr(self.whole, method)(*given)
        assert found == getattr(self.again, method)(*given)
        return found


def of_the_unit(ticket):
    """A result that can be reused."""
    found = outcome(ticket.prompt, ticket.rollout, ticket.unit)
    return found and replace(found, completion=str(ticket.number))


@pytest.mark.parametrize(("name", "selection"), [*BOTH, ("ar3po", False)])
def test_saved_and_loaded_at_any_event_the_same_decisions_follow(name, selection):
    def make():
        rule = PRICED[name]() if name in PRICED else small(name, 4)
        return Scheduler(run(rule, Mixed() if selection else None), make_prompts(40), Rows(48))

    twins = Twins(make)
    assert len(list(islice(events(twins, 16, of_the_unit), 500))) == 500 and twins.whole.version > 3


@pytest.mark.parametrize("most_rows", [None, 4, 12])
def test_a_stream_of_offered_prompts_that_is_saved_and_loaded_asks_for_as_many(most_rows):
    prompts = make_prompts(40)

    def make():
        rule = HORA(rollouts_per_prompt=5, pre_rollouts=2, high=12)
        return OfferedScheduler(rule, prompts, Prompts(2, most_rows=most_rows))

    twins, offers = Twins(make), itertools.cycle(prompts)

    def offer(count):
        for prompt in islice(offers, count):
            for stream in (twins.whole, twins.again):
                stream.source.offer(prompt.id)

    offer(2)
    for decision in islice(events(twins, 16, of_the_unit), 500):
        if decision.update:
            lost = reloaded(make, twins.again)
            lost.restarted()
            assert lost.decide(0, 0.0).update == decision.update
            assert lost.counts["owed"] == twins.whole.counts["owed"]
        offer(twins.both("wanted") + 2 * bool(decision.update))
    assert twins.decided == 500 and twins.whole.version > 3


def test_a_request_without_an_answer_is_cancelled_and_made_again():
    stream = Scheduler(Uniform(2), make_prompts(3), Rows(2), patience=10.0, attempts=2)
    first, other = stream.decide(2, 0.0).requests
    stream.arrived(other, Rollout(True))
    assert stream.decide(0, 9.9).cancelled == ()
    decision = stream.decide(1, 10.0)
    assert decision.cancelled == (first,)
    (again,) = decision.requests
    assert (again.unit, again.place, again.rollout, again.attempt) == (first.unit, first.place, first.rollout, 1)
    assert not stream.arrived(first, Rollout(True))  # late
    assert stream.arrived(again, None)  # the last attempt: the rollout is left out
    update = stream.decide(0, 11.0).update
    assert update is None  # one row is too few
    assert stream.counts["failed"] == 1


def test_a_dead_engine_ends_the_run_in_one_line_and_the_saved_state_goes_on():
    """Without an end its prompts would be opened, given up and trained on as empty updates for ever."""
    stream, answered, error = Scheduler(Uniform(4), make_prompts(50), Rows(16)), 0, ""
    for now in range(2_000):
        try:
            decision = stream.decide(8, float(now))
        except RuntimeError as found:
            error = str(found)
            break
        saved = copy.deepcopy(stream.state_dict())
        for ticket in decision.requests:
            answered += stream.arrived(ticket, None)
        if decision.update:
            stream.trained(decision.update.version)
    assert 256 * 3 <= answered < 256 * 3 + 30 and error.startswith("rollouts must arrive, got none of the latest 2")
    again = Scheduler(Uniform(4), make_prompts(50), Rows(16))
    again.load_state_dict(saved)
    again.restarted()
    tickets = again.decide(8, 0.0).requests
    assert tickets and all(again.arrived(ticket, Rollout(True)) for ticket in tickets)


def test_a_data_set_that_is_smaller_than_an_update_gives_short_updates():
    stream = Scheduler(Uniform(2), make_prompts(3), Rows(100))
    assert [len(update) for update in in_one_go(stream, 4, answer=lambda ticket: Rollout(True))] == [3, 3, 3, 3]


def test_wrong_settings_are_refused():
    given = {"decisions": Uniform(2), "prompts": make_prompts(3), "due": Rows(4)}
    assert_refused(
        lambda settings: Scheduler(**given | settings),
        [
            ("batch must say how many prompts dapo plans together", {"decisions": ALLOCATORS["dapo"]()}),
            ("must be that of a prompt under a price", {"decisions": VIP(budget=24)}),
            ("decisions must be an Allocator", {"decisions": "uniform"}),
            ("patience must be above 0", {"patience": 0.0}),
            ("slack must be at least 1", {"slack": 0.5, "decisions": VIP()}),
            ("batch must be at most the 3 prompts", {"batch": 99}),
            ("batch must be None for updates of Prompts", {"batch": 2, "due": Prompts(2)}),
            ("prompts must be distinct", {"prompts": [Prompt("a"), Prompt("a")]}),
        ],
    )


def test_an_update_has_weighted_advantages_by_the_baseline_before_its_own_rollouts():
    decisions = TrainerAllocation(
        allocator=Uniform(2), baseline=SPO(), selection=SPOWeights(importance_weights=True), estimator="reinforce"
    )
    stream = Scheduler(decisions, make_prompts(4), Rows(4, 0))
    for version in (1, 2):
        for ticket in stream.decide(4, 0.0).requests:
            stream.arrived(ticket, Rollout(ticket.rollout == 0))
        update = stream.decide(0, 0.0).update
        values = decisions.baseline.predict([group.prompt for group in update.groups])
        assert update.baselines.tolist() == values.tolist()
        expected = decisions.weights(update.groups) * (np.tile([1.0, 0.0], 2) - np.repeat(values, 2))
        assert update.advantages.tolist() == expected.tolist()
        if version == 1:
            stream.trained(1)
            again = Scheduler(replace(decisions, baseline=SPO()), make_prompts(4), Rows(4, 0))
            again.load_state_dict(json.loads(json.dumps(stream.state_dict())))
            assert again.decisions.baseline.state_dict() == decisions.baseline.state_dict()
    other = Scheduler(replace(decisions, baseline=SPO(rho=0.5)), make_prompts(4), Rows(4, 0))
    with pytest.raises(ValueError, match="rho must be"):
        other.load_state_dict(stream.state_dict())


class FailingOnce(SPO):
    """A baseline whose method ``failing`` raises once, as one does whose embedder is out of memory."""

    failing = ""

    def predict(self, prompts):
        self._fail("predict")
        return super().predict(prompts)

    def update(self, batch):
        self._fail("update")
        super().update(batch)

    def _fail(self, method):
        if self.failing == method:
            self.failing = ""
            raise MemoryError(method)


def test_an_update_whose_baseline_raises_is_not_lost():
    baseline = FailingOnce()
    decisions = TrainerAllocation(allocator=Uniform(2), baseline=baseline, estimator="reinforce")
    stream = Scheduler(decisions, make_prompts(4), Rows(4, 0))
    for ticket in stream.decide(4, 0.0).requests:
        stream.arrived(ticket, Rollout(ticket.rollout == 0))
    baseline.failing = "predict"
    with pytest.raises(MemoryError, match="predict"):
        stream.decide(0, 0.0)
    assert len(stream.decide(0, 0.0).update.groups) == 2


@pytest.mark.parametrize(
    ("decisions", "rollout", "problem"),
    [
        (
            TrainerAllocation(allocator=Uniform(2), baseline=Optimal(), estimator="reinforce"),
            Rollout(True),
            "for optimal",
        ),
        (TrainerAllocation(allocator=Uniform(2), estimator="group_optimal"), Rollout(True), "for group_optimal"),
        (RunDecisions(allocator=VIP(predictor=ScoreMoments())), Rollout(True), "score_norm for vip"),
        (RunDecisions(allocator=small("hora")), Rollout(reward=0.5), "0 or 1 for hora"),
        (RunDecisions(allocator=PRICED["vip, tokens"]()), Rollout(True), "must say their tokens"),
    ],
)
def test_a_rollout_without_what_is_read_of_it_is_refused_before_another_is_sampled(decisions, rollout, problem):
    stream = Scheduler(decisions, make_prompts(4), Rows(4, 0))
    (ticket,) = stream.decide(1, 0.0).requests
    before = stream.state_dict()
    with pytest.raises(ValueError, match=problem):
        stream.arrived(ticket, rollout)
    assert stream.state_dict() == before
    assert stream.arrived(ticket, replace(rollout, correct=True, tokens=3, score_norm=1.0))


class Counting(Uniform):
    seen = 0

    def observe(self, batch):
        type(self).seen += 1


@pytest.mark.parametrize(
    "then",
    [lambda s: s.trained(1), lambda s: s.decide(0, 1.0), lambda s: s.state_dict()],
    ids=["trained", "go on", "save"],
)
def test_a_part_that_raised_learns_in_the_next_call_and_the_others_once(then):
    baseline, twin = FailingOnce(), SPO()
    Counting.seen = 0
    decisions = TrainerAllocation(allocator=Counting(2), baseline=baseline, estimator="reinforce")
    stream = Scheduler(decisions, make_prompts(4), Rows(4, 0))
    for ticket in stream.decide(4, 0.0).requests:
        stream.arrived(ticket, Rollout(ticket.rollout == 0))
    update = stream.decide(0, 0.0).update
    baseline.failing = "update"
    with pytest.raises(MemoryError, match="update"):
        stream.trained(update.version)
    then(stream)
    twin.update(update.batch)
    assert (Counting.seen, stream.version) == (1, 1)
    assert baseline.predict(make_prompts(4)).tolist() == twin.predict(make_prompts(4)).tolist()


def test_a_damaged_state_and_a_wrong_version_are_refused():
    stream = Scheduler(Uniform(2), make_prompts(3), Rows(4))
    ticket = stream.decide(1, 0.0).requests[0]
    before = stream.state_dict()
    for damaged in (
        {},
        before | {"units": [{"number": 0}]},
        before | {"queue": 7},
        before | {"queue": [[0]]},
        before | {"units": [], "lengths": 0},
        before | {"counts": {}},
        before | {"counts": {"opened": "x"}},
        before | {"queue": []},
        before | {"finished": [0]},
    ):
        with pytest.raises(ValueError, match="a scheduler"):
            stream.load_state_dict(damaged)
        assert stream.state_dict() == before
    with pytest.raises(ValueError, match="with its own 3 prompts"):
        Scheduler(Uniform(2), make_prompts(2), Rows(4)).load_state_dict(stream.state_dict())
    with pytest.raises(ValueError, match="batch must be None, as in the run"):
        Scheduler(Uniform(2), make_prompts(3), Rows(4), batch=3).load_state_dict(before)
    with pytest.raises(ValueError, match="version must be that of the update"):
        stream.trained(1)
    with pytest.raises(ValueError, match="sample must be asynchronous here, got Rollout"):
        asyncio.run(
            anext(stream_groups(Scheduler(Uniform(2), make_prompts(3), Rows(4)), lambda _: Rollout(True), slots=1))
        )
    with pytest.raises(ValueError, match="a result must be a Rollout"):
        stream.arrived(ticket, [Rollout(True)])


def test_asyncio_runs_a_stream_and_ends_hanging_calls():
    running, most, hung = Counter(), [0], []

    async def sample(ticket):
        running["now"] += 1
        most[0] = max(most[0], running["now"])
        try:
            if ticket.number == 5:
                hung.append(ticket)
                await asyncio.sleep(60)
            await asyncio.sleep(0.001 * (ticket.number % 3))
            return Rollout(ticket.rollout % 2 == 0)
        finally:
            running["now"] -= 1

    async def train():
        stream = Scheduler(VIP(rollouts_per_prompt=4), make_prompts(20), Rows(16, 2), patience=2.0)
        versions = []
        async for update in stream_groups(stream, sample, slots=6):
            versions.append(update.version)
            await asyncio.sleep(0.005)
            if update.version == 8:
                break
        return stream, versions

    async def bounded():
        return await asyncio.wait_for(train(), 20)

    stream, versions = asyncio.run(bounded())
    assert versions == list(range(1, 9)) and most[0] <= 6
    assert len(hung) == 1 and stream.counts["cancelled"] == 1


def test_asyncio_raises_what_a_call_raises_and_cancels_the_others():
    ended = []

    async def sample(ticket):
        if ticket.number == 3:
            raise OSError("the engine is gone")
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(ticket.number)

    async def train():
        async for _ in stream_groups(Scheduler(Uniform(4), make_prompts(4), Rows(8)), sample, slots=4):
            pass

    with pytest.raises(OSError, match="the engine is gone"):
        asyncio.run(train())
    assert sorted(ended) == [0, 1, 2]


def loop_until(stream, updates, trained, saved=None):
    """Train ``updates`` updates of ``stream``, each by noting its rollouts. Return the state after the last one."""

    async def sample(ticket):
        await asyncio.sleep(0.0005 * (ticket.number % 4))
        found = outcome(ticket.prompt, ticket.rollout)
        return found and replace(found, completion=f"{ticket.unit} {ticket.rollout}")

    async def train():
        async for update in stream_groups(stream, sample, slots=6):
            if saved is not None:
                with pytest.raises(ValueError, match=f"call trained.{update.version}. after the optimizer's step"):
                    stream.state_dict()
            trained.update(rollout.completion for group in update.groups for rollout in group.rollouts)
            stream.trained(update.version)
            if update.version == updates:
                return stream.state_dict()
        raise AssertionError("the stream must have more updates")

    return asyncio.run(asyncio.wait_for(train(), 20))


@pytest.mark.parametrize("form", ["json", "torch"])
def test_a_loop_that_is_saved_in_its_body_and_resumed_trains_every_rollout_once(form):
    def make():
        return Scheduler(HORA(rollouts_per_prompt=4, pre_rollouts=2), make_prompts(30), Rows(16, 2))

    stream, trained = make(), Counter()
    state = loop_until(stream, 4, trained, saved=True)
    if form == "json":
        state = json.loads(json.dumps(state))
    else:
        torch, file = pytest.importorskip("torch"), io.BytesIO()
        torch.save(state, file)
        state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    again = make()
    again.load_state_dict(state)
    in_flight = set(again._units)
    loop_until(again, 12, trained)
    assert again.version == 12 and max(trained.values()) == 1
    assert in_flight and not in_flight & again._units.keys()  # none is lost


def test_a_loop_that_was_left_in_its_body_says_whether_it_has_trained():
    stream = Scheduler(Uniform(2), make_prompts(9), Rows(4))

    async def first():
        async for update in stream_groups(stream, lambda ticket: asyncio.sleep(0, Rollout(True)), slots=3):
            return update
        return None

    update = asyncio.run(first())
    with pytest.raises(ValueError, match="must know whether update 1 is trained on"):
        asyncio.run(first())
    stream.restarted()
    assert asyncio.run(first()) == update
    assert stream.trained(1) and stream.state_dict()["version"] == 1
    assert asyncio.run(first()).version == 2
