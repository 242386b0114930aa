from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import betabinom

from apportion import DAPO, HORA, VIP, Prompt, Select, Uniform, collect
from apportion.allocators.select import Candidates, mixed_probability
from apportion.predictors import DiscountedCounts, Predictor, UniformPrior
from apportion.types import Batch, Belief, Rollout
from tests.builders import bernoulli_sampler, make_prompts


class Known(Predictor):
    """Believes Beta(strength p, strength (1 - p)) of ``make_prompts``' prompt q."""

    name = "known"

    def __init__(self, success, strength=1000.0):
        self.success, self.strength = success, strength

    def predict(self, prompts):
        return Belief.from_mean([self.success[int(prompt.text.split()[1])] for prompt in prompts], self.strength)

    def update(self, batch):
        """Do nothing."""

    def _settings(self):
        return {}


@given(st.floats(0.05, 20), st.floats(0.05, 20), st.integers(2, 12))
def test_the_chance_of_a_mixed_group_is_that_of_the_beta_binomial(a, b, n):
    expected = 1 - betabinom.pmf(0, n, a, b) - betabinom.pmf(n, n, a, b)
    assert mixed_probability(Belief([a], [b]), n)[0] == pytest.approx(expected, abs=1e-9)


def test_the_chance_of_a_mixed_group_at_certainty_and_at_a_point():
    belief = Belief([0.0, 1.0, 3e8, 1.0], [1.0, 0.0, 7e8, 1.0])
    assert mixed_probability(belief, 4) == pytest.approx([0, 0, 1 - 0.3**4 - 0.7**4, 1 - 2 / 5])


def chosen(allocator, prompts):
    batch = allocator.start(prompts)
    return {prompt.id for prompt, taken in zip(batch.prompts, batch.chosen, strict=True) if taken}


def test_it_takes_those_likeliest_to_be_mixed_and_gives_the_others_nothing():
    success = [0.0, 0.5, 0.99, 0.4, 1.0, 0.2]
    allocator = Select(allocator=Uniform(4), prompts=3, predictor=Known(success), exploration=0.0)
    batch = collect(allocator, make_prompts(6), bernoulli_sampler(success))
    assert batch.asked.tolist() == [0, 4, 0, 4, 0, 4]
    assert [group.prompt.text for group in allocator.groups(batch)] == ["prompt 1", "prompt 3", "prompt 5"]


def test_uncertain_prompts_rank_above_hopeless_and_solved_ones():
    allocator = Select(allocator=Uniform(4), prompts=2, exploration=0.0)
    allocator.observe(collect(allocator, make_prompts(2), bernoulli_sampler([0.0, 1.0])))
    assert chosen(allocator, make_prompts(4)) == {prompt.id for prompt in make_prompts(4)[2:]}


@given(st.permutations(range(8)), st.integers(0, 5))
def test_the_choice_does_not_depend_on_positions(order, seed):
    prompts = make_prompts(8)
    allocator = Select(prompts=4, exploration=0.5, seed=seed, predictor=Known([0.1, 0.1, 0.5, 0.5, 0.5, 0.9, 0, 1]))
    assert chosen(allocator, [prompts[q] for q in order]) == chosen(allocator, prompts)


def test_exploration_deals_its_share_of_the_places_evenly_among_the_rest():
    success = [0.5] * 4 + [0.0] * 8
    taken = np.zeros(12)
    for seed in range(800):
        batch = Select(prompts=5, predictor=Known(success), exploration=0.2, seed=seed).start(make_prompts(12))
        assert batch.chosen[:4].all() and batch.chosen.sum() == 5
        taken += batch.chosen
    assert taken[4:] == pytest.approx(100, abs=40)


def test_the_draws_change_with_every_batch_that_was_observed():
    allocator = Select(allocator=Uniform(2), prompts=4, predictor=UniformPrior())
    sets = []
    for _ in range(6):
        batch = collect(allocator, make_prompts(20), bernoulli_sampler([0.5] * 20))
        sets.append(tuple(np.flatnonzero(batch.chosen)))
        allocator.observe(batch)
    assert len(set(sets)) == 6


def test_a_plan_does_not_change_while_the_allocator_learns_from_other_batches():
    allocator = Select(allocator=HORA(pre_rollouts=2, rollouts_per_prompt=5), prompts=3)
    batch = allocator.start(make_prompts(9))
    plan = allocator.plan(batch)
    for seed in range(3):
        allocator.observe(collect(allocator, make_prompts(9), bernoulli_sampler([0.5] * 9, seed)))
    assert allocator.plan(batch) == plan
    assert not np.array_equal(allocator.start(make_prompts(9)).chosen, batch.chosen)


def test_the_inner_allocator_plans_the_chosen_as_if_there_were_no_others():
    success = [0.0, 0.1, 0.5, 0.7, 1.0]
    inner = VIP(rollouts_per_prompt=6, high=12, predictor=Known(success))
    allocator = Select(allocator=inner, prompts=3, predictor=Known(success), exploration=0.0)
    alone = inner.plan(inner.start(make_prompts(5)[1:4]))
    assert allocator.plan(allocator.start(make_prompts(5))).counts.tolist() == [0, *alone.counts, 0]
    assert allocator.size(4).exact and not Select(allocator=DAPO()).size(4).exact


def test_rounds_of_the_inner_allocator_see_its_rollouts():
    inner = HORA(pre_rollouts=2, rollouts_per_prompt=6, high=16)
    allocator = Select(allocator=inner, prompts=3, predictor=Known([0, 0, 0.2, 0.5, 0.8]), exploration=0.0)
    batch = collect(allocator, make_prompts(5), bernoulli_sampler([0, 0, 0.2, 0.5, 0.8]))
    alone = collect(inner, make_prompts(5)[2:], bernoulli_sampler([0, 0, 0.2, 0.5, 0.8]))
    assert batch.round == alone.round == 2
    assert batch.selected == alone


def test_fresh_prompts_of_the_inner_allocator_join_as_chosen():
    inner = DAPO(rollouts_per_prompt=4, draw=3, max_draws=4)
    fresh = iter(make_prompts(20)[4:])
    allocator = Select(allocator=inner, prompts=3, exploration=0.0)
    batch = collect(
        allocator, make_prompts(4), bernoulli_sampler([0.0] * 20), source=lambda n: [next(fresh) for _ in range(n)]
    )
    assert isinstance(batch, Candidates) and len(batch.prompts) > 4 and batch.chosen[4:].all()
    assert batch.asked.tolist() == [4 * int(taken) for taken in batch.chosen]


def test_both_learn_and_a_shared_predictor_learns_once():
    shared = DiscountedCounts(discount=1.0)
    allocator = Select(allocator=VIP(rollouts_per_prompt=4, predictor=shared), prompts=2, predictor=shared)
    own = Select(allocator=VIP(rollouts_per_prompt=4, predictor=DiscountedCounts(discount=1.0)), prompts=2)
    for each in (allocator, own):
        each.observe(collect(each, make_prompts(2), bernoulli_sampler([1.0, 1.0])))
    assert shared.predict(make_prompts(2)).alpha.tolist() == [5.0, 5.0]
    assert own.predictor.predict(make_prompts(2)).alpha.tolist() == [5.0, 5.0]
    assert own.allocator.predictor.predict(make_prompts(2)).alpha.tolist() == [5.0, 5.0]


def test_a_restored_select_draws_as_the_saved_one():
    allocator, restored = (Select(allocator=Uniform(2), prompts=4, seed=3) for _ in range(2))
    for seed in range(3):
        allocator.observe(collect(allocator, make_prompts(20), bernoulli_sampler([0.5] * 20, seed)))
    restored.load_state_dict(copy.deepcopy(allocator.state_dict()))
    assert restored.start(make_prompts(20)) == allocator.start(make_prompts(20))


def test_fewer_candidates_than_places_are_all_taken():
    allocator = Select(allocator=Uniform(2), prompts=10, exploration=1.0)
    assert allocator.plan(allocator.start(make_prompts(3))).counts.tolist() == [2, 2, 2]


def test_a_budget_is_that_of_the_chosen():
    allocator = Select(allocator=VIP(budget=24, predictor=UniformPrior()), prompts=4)
    assert allocator.plan(allocator.start(make_prompts(50))).counts.sum() == 24
    with pytest.raises(ValueError, match="budget must be between"):
        allocator.size(0)


def test_a_batch_that_it_did_not_start_is_refused():
    with pytest.raises(ValueError, match=r"got a Batch; begin it with Select\.start"):
        Select().plan(Batch.start([Prompt("a")], Belief.uniform(1)))


def test_graded_rewards_are_refused_where_a_predictor_counts():
    def graded(prompts, counts):
        return [[Rollout(reward=0.3)] * int(n) for n in counts]

    with pytest.raises(ValueError, match="rewards must be 0 or 1 for select"):
        collect(Select(), make_prompts(2), graded)
    assert collect(Select(predictor=UniformPrior()), make_prompts(2), graded).asked.tolist() == [8, 8]


@pytest.mark.parametrize(
    "settings", [{"prompts": 0}, {"group_size": 1}, {"exploration": 1.5}, {"exploration": -0.1}], ids=str
)
def test_wrong_settings_are_refused(settings):
    with pytest.raises(ValueError, match=r"must be .*, got .*; "):
        Select(**settings)
