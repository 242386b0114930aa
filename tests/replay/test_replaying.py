"""Replay of allocators: equal to sampling from the record, to known tables, and to brute force; what is refused."""

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest

from apportion import AR3PO, HORA, VIP, ExploreThenCommit, Uniform, collect
from apportion.allocators import ALLOCATORS
from apportion.cli.replay_text import replay_text
from apportion.predictors import DiscountedCounts, EmpiricalBayes, UniformPrior
from apportion.records import Recorded
from apportion.replay import OutcomePopulation, batches_of, replay, replay_batches, replaying
from apportion.replay.allocating import quiet, replay_allocator
from apportion.replay.cells import measures
from apportion.replay.drawing import fresh_groups, own_rows, rollout_of
from apportion.replay.limits import drift
from apportion.selection import Mixed
from benchmarks.real_run_data import grpo_run
from tests.cases import assert_refused
from tests.replay.runs import made_run, visits_of
from tests.soak import case


@pytest.mark.parametrize("name", ALLOCATORS)
def test_pools_give_what_collect_gives_from_the_recorded_rollouts(name):
    """Bit by bit: batches and groups of every rule, with what it learned from the batches before."""
    record = made_run(prompts=120)
    population = OutcomePopulation.pools(record, labels=ALLOCATORS[name]().needs.labels)
    rule, again = ALLOCATORS[name]().with_budget(8), ALLOCATORS[name]().with_budget(8)
    with quiet(rule), quiet(again):
        again.prepare(record.prompts)
        for groups, found in zip(batches_of(record), replay_batches(rule, population, batches_of(record)), strict=True):
            fresh = list(fresh_groups(record, groups, population.size > 0))
            waiting = iter([record.prompts[q] for q in record.prompt[fresh]])
            streams = {
                record.ids[record.prompt[group]]: [rollout_of(population, row) for row in own_rows(population, group)]
                for group in [*groups, *fresh]
            }
            batch = collect(
                again,
                [record.prompts[q] for q in record.prompt[groups]],
                Recorded(streams),
                source=lambda count, waiting=waiting: [next(waiting) for _ in range(count)],
            )
            assert batch == found.batch
            assert again.groups(batch) == list(found.groups)
            again.observe(batch)


@pytest.fixture(scope="module")
def real():
    """Return the run of benchmarks/real_run, of which its table shows some of the first eight visits."""
    counts = grpo_run().rewards.sum(axis=2).astype(int)
    return visits_of(counts)


def first_visits(record, seed, visits):
    return [groups for groups in batches_of(record, seed) if record.step[groups[0]] < visits]


VIP_TABLE = [
    case(DiscountedCounts, [1.0, 0.911, 0.867], suite=False),
    case(EmpiricalBayes, [1.0, 0.876, 0.831], suite=True),
]


@pytest.mark.parametrize(("predictor", "expected"), VIP_TABLE)
def test_vip_has_the_variances_of_the_table_of_the_real_run(real, predictor, expected):
    population, sums = OutcomePopulation.expected(real), np.zeros((2, 3))
    for seed in range(3):
        rule = VIP(rollouts_per_prompt=8, low=3, high=32, predictor=predictor())
        cells = replay_allocator(rule, population, first_visits(real, seed, 3), seed, "recorded")
        for side in (0, 1):
            sums[side] += np.bincount(cells.step, cells.by_step("variance", even=bool(side)))
    assert (sums[0] / sums[1]).round(3).tolist() == expected


def test_hora_has_the_hits_of_the_table_of_the_real_run(real):
    """Under Beta(1, 1)."""
    population, truth = OutcomePopulation.expected(real), OutcomePopulation.expected(real).rate
    own = np.zeros(2)
    for seed in range(3):
        batches = first_visits(real, seed, 2)
        rule = HORA(pre_rollouts=8, rollouts_per_prompt=16, high=64, predictor=UniformPrior())
        cells = replay_allocator(rule, population, batches, seed, "recorded")
        second = cells.step[cells.batch] == 1
        p, extra = truth[cells.group][second], (cells.rule["rollouts"] - cells.first)[second]
        own += (1 - (1 - p) ** extra).sum(), (1 - (1 - p) ** 8).sum()
    assert round(own[0] / own[1], 3) == 1.030


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("source", ["pools", "expected"])
def test_the_closed_forms_are_those_of_brute_force(graded, source):
    record = made_run(steps=2, batch=2, prompts=2, size=5, graded=graded)
    population = getattr(OutcomePopulation, source)(record)
    for group, number in product(range(4), range(4)):
        low, high = (bound[group] for bound in population.bounds)
        rewards = record.reward[population.rows[low:high]]
        draws = combinations(rewards, number) if source == "pools" else product(rewards, repeat=number)
        draws = list(draws)
        found = population.mixed(np.array([group]), np.array([number]))[0]
        assert found == pytest.approx(np.mean([len(set(draw)) > 1 for draw in draws]))
        assert population.variance[group] == pytest.approx(np.var(rewards))
        if not graded:
            none = population.none_right(np.array([group]), np.array([number]))[0]
            assert none == pytest.approx(np.mean([sum(draw) == 0 for draw in draws]))


def test_drawn_rollouts_agree_with_the_closed_forms():
    """AR3PO in one stage without reuse is uniform allocation, measured on what is drawn."""
    record = visits_of(np.random.default_rng(0).integers(0, 9, (200, 12)))
    rule = AR3PO(stages=1, rollouts_per_stage=5, reuse="none")
    found = replay(record, {"one stage": rule}, seeds=range(4)).allocators[0]
    assert not found.closed and found.source == "expected"
    for measure in ("mixed", "hits", "dead"):
        assert found.ratios[measure].low < 1 < found.ratios[measure].high
        assert measure == "dead" or found.ratios[measure].high - found.ratios[measure].low < 0.1


def test_two_losses_have_two_verdicts():
    record = visits_of([[4] * 12, [1] * 12])
    population = OutcomePopulation.expected(record)
    v = np.array([1 / 4, 7 / 64])
    for counts in ([8, 8], [12, 4]):
        found = measures(population, np.array([0, 1]), np.array(counts))
        assert found["signal"] == pytest.approx(np.array(counts) * v)
        assert found["variance"] == pytest.approx(4 * v / (np.array(counts) - 1))


def test_uniform_is_its_own_control():
    found = replay(made_run(), {"uniform": Uniform()}, rollouts=8)
    (uniform,) = found.allocators
    assert uniform.source == "pools" and uniform.same_total and uniform.missing is None
    assert {name: ratio.value for name, ratio in uniform.ratios.items()} == pytest.approx(
        dict.fromkeys(("mixed", "variance", "signal", "hits", "dead", "tokens"), 1.0)
    )
    assert uniform.cells.by_step("rollouts").tolist() == [64.0] * 6
    assert uniform.cells.coverage() == pytest.approx(uniform.cells.coverage(even=True))


def test_the_rules_that_are_given_learn_nothing_and_seeds_repeat():
    rule, record = VIP(), made_run(size=16, ordered=False)
    first = replay(record, {"vip": rule}, rollouts=4, seeds=(0, 1), outcomes="expected").allocators[0]
    again = replay(record, {"vip": rule}, rollouts=4, seeds=(0, 1), outcomes="expected").allocators[0]
    np.testing.assert_array_equal(first.cells.rule["rollouts"], again.cells.rule["rollouts"])
    assert first.ratios == again.ratios and first.cells.seeds == 2


def test_a_rule_learns_from_its_own_rollouts_or_from_the_recorded_groups():
    class Watching(UniformPrior):
        def __init__(self):
            super().__init__()
            self.seen = []

        def update(self, batch):
            self.seen.append(batch.trials.tolist())

    record = made_run(steps=2)
    for observe, size in (("own", 4), ("recorded", 160)):
        predictor = Watching()
        list(replay_batches(VIP(rollouts_per_prompt=4, predictor=predictor), OutcomePopulation.pools(record),
                            batches_of(record), observe=observe))  # fmt: skip
        assert predictor.seen == [[size] * 8] * 2


def test_recorded_rollouts_of_unknown_order_are_drawn_in_a_random_one():
    """Group counts say nothing of the order, so two pilots of four right ones among eight differ with 4/7."""
    record = visits_of([[4] * 6 for _ in range(60)])
    rule = {"explore": ExploreThenCommit(pilots=2, high=8)}
    found = replay(record, rule, observe="recorded", outcomes="expected").allocators[0]
    committed = (found.cells.rule["rollouts"] > 2).mean()
    assert committed == pytest.approx(4 / 7, abs=0.06)


def test_pools_that_run_dry_are_counted_by_kind_of_prompt():
    record = made_run(size=8)
    with pytest.raises(ValueError, match="the pools must hold 90% of the rollouts that uniform asks for, got 50%"):
        replay(record, {"uniform": Uniform(16)}, outcomes="pools")
    found = replay(record, {"uniform": Uniform(16)}, outcomes="pools", allow_missing=True).allocators[0].missing
    assert (found.share, found.rollouts, found.steps) == (0.5, 8 * 48, 1.0)
    assert found.prompts == len(np.unique(record.prompt)) and found.hard + found.easy <= 1 and found.mixed > 0
    assert replay(record, {"uniform": Uniform(16)}).allocators[0].source == "expected"


def test_a_window_enlarges_the_pools_with_the_nearest_visits_first():
    record = made_run(steps=8, batch=4, prompts=4, size=8)
    population = OutcomePopulation.pools(record, window=1)
    batches = batches_of(record)
    (batch,) = [each.batch for each in replay_batches(Uniform(16), population, batches[3:4])]
    own = [rollout.completion for rollout in batch.rollouts[0]]
    group = batches[3][0]
    before = next(g for g in range(32) if record.prompt[g] == record.prompt[group] and record.step[g] == 2)
    assert own == [
        *range(record.first[group], record.first[group + 1]),
        *range(record.first[before], record.first[before + 1]),
    ]
    found = replay(record, {"uniform": Uniform(16)}, outcomes="pools", window=1)
    assert found.allocators[0].missing is None and np.isfinite(found.drift)


def test_drift_is_measured_without_the_noise_of_groups():
    rng = np.random.default_rng(0)
    still = visits_of(rng.binomial(8, 0.4, (4000, 10)))
    moving = visits_of(rng.binomial(8, np.linspace(0.1, 0.8, 10), (400, 10)))
    assert drift(still, 1) < 0.05
    assert drift(moving, 3) == pytest.approx(0.7 / 3, abs=0.02)


def test_what_was_not_recorded_or_given_is_refused_in_one_line():
    def named(case):
        missing, name = case
        replay(made_run(**{missing: missing == "graded"}), {name: ALLOCATORS[name]()})

    assert_refused(
        named,
        [
            ("answers must be recorded to replay voting", ("answers", "voting")),
            ("score norms of all rollouts must be recorded to replay neyman", ("norms", "neyman")),
            ("rewards must be 0 or 1 to replay hora, got graded ones", ("graded", "hora")),
        ],
    )
    once = visits_of([[4]] * 8)
    with pytest.raises(ValueError, match="most prompts must be visited twice to replay mixed, got one group of most"):
        replay(once, {"mixed": Mixed()}, batch=4)


def test_graded_rewards_are_replayed_by_rules_that_take_them():
    found = replay(made_run(graded=True, size=32), {"vip": VIP(), "dapo": ALLOCATORS["dapo"]()}, rollouts=6)
    assert all("hits" not in each.ratios and each.cells.total("mixed") > 0 for each in found.allocators)


def test_rewards_that_differ_by_rounding_alone_are_no_mixed_group():
    record = made_run(graded=True, size=32)
    record = replace(record, reward=np.tile([0.3, 0.1 + 0.2], len(record.reward) // 2))
    found = replay(record, {"vip": VIP(), "stages": AR3PO(), "dapo": ALLOCATORS["dapo"]()}, rollouts=6)
    assert [each.name for each in found.allocators] == ["vip"] and "fresh prompts" in found.dropped[1]
    for each in found.allocators:
        assert each.cells.total("mixed") == each.cells.total("mixed", even=True) == 0


@pytest.mark.parametrize("outcomes", ["pools", "expected"])
def test_rules_without_labels_are_replayed_from_answers_alone(outcomes):
    record = made_run(size=40)
    unlabelled = replace(record, reward=np.full(len(record.reward), np.nan))
    found = replay(unlabelled, {"ttrl": ALLOCATORS["ttrl"]()}, outcomes=outcomes, allow_missing=True).allocators[0]
    labelled = replay(record, {"ttrl": ALLOCATORS["ttrl"]()}, outcomes=outcomes, allow_missing=True).allocators[0]
    np.testing.assert_array_equal(found.cells.rule["mixed"], labelled.cells.rule["mixed"])
    assert np.isnan(found.cells.rule["hits"]).all() and np.isnan(found.cells.rule["variance"]).all()


def test_a_prompt_that_comes_twice_in_a_step_has_two_pools():
    once = made_run(steps=2, batch=6, size=16)
    record = replace(once, step=np.zeros(12, np.int64))
    assert len(np.unique(record.prompt)) < 12
    (found,) = replay_batches(AR3PO(), OutcomePopulation.pools(record), batches_of(record))
    for group, rollouts in zip(found.places, found.batch.rollouts, strict=True):
        assert all(record.first[group] <= rollout.completion < record.first[group + 1] for rollout in rollouts)


def test_tokens_are_those_of_the_drawn_rollouts_and_of_the_pool_on_average():
    record = made_run(size=16)
    drawn, planned = replay(record, {"ar3po": AR3PO(), "uniform": Uniform(16)}).allocators
    assert planned.cells.total("tokens") == pytest.approx(record.tokens.sum())
    assert 5 * drawn.cells.total("rollouts") < drawn.cells.total("tokens") < 50 * drawn.cells.total("rollouts")


def in_steps(record, size):
    """Return ``record`` with a step a batch of ``size`` groups in place of visits."""
    return replace(record, visits=False, step=np.arange(len(record.step)) // size)


@pytest.mark.parametrize("form", [lambda record: record, lambda record: in_steps(record, 40)])
def test_a_run_of_many_groups_is_replayed_on_a_sample_of_its_prompts(form, monkeypatch):
    rng = np.random.default_rng(0)
    chances = rng.beta(0.6, 0.6, 1200)
    counts = rng.binomial(8, chances[:, None], (1200, 3)).tolist()
    record = form(visits_of(counts))
    rules = {"hora": HORA(), "mixed": Mixed()}
    whole = replay(record, rules, batch=40)
    monkeypatch.setattr(replaying, "MOST_GROUPS", 900)
    part = replay(record, rules, batch=40)
    assert not whole.doubts
    assert part.doubts == (
        "replayed on a random 300 of 1,200 prompts, because the run has 3,600 groups, and 900 tell as much",
    )
    assert "Figures" not in replay_text(part)
    assert "Figures, as read (see ?)." in replay_text(replace(whole, doubts=("the reward is reward; or score",)))
    sizes = np.bincount(part.allocators[0].cells.batch)
    assert 36 <= np.median(sizes) <= 44
    for measure, value in whole.allocators[0].ratios.items():
        assert part.allocators[0].ratios[measure].value == pytest.approx(value.value, rel=0.15), measure
    assert part.selectors[1].mixed.mean() == pytest.approx(whole.selectors[1].mixed.mean(), abs=0.1)
