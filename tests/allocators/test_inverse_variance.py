import itertools
import tomllib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion import Belief, InverseVariance
from apportion.config import build, dump, to_toml
from apportion.predictors import UniformPrior
from tests.builders import make_batch


def planned(allocator, belief):
    return allocator.plan(make_batch([[]] * len(belief), belief)).counts


@settings(max_examples=100, deadline=None)
@given(variance=st.lists(st.floats(0, 2), min_size=1, max_size=4), data=st.data())
def test_no_integer_counts_within_budget_and_bounds_are_nearer_to_the_shares(variance, data):
    low, epsilon = data.draw(st.integers(1, 3)), data.draw(st.floats(0.001, 10))
    high = low + data.draw(st.integers(0, 6))
    budget = data.draw(st.integers(low * len(variance), high * len(variance)))
    allocator = InverseVariance(budget=budget, low=low, high=high, epsilon=epsilon)
    P = len(variance)
    counts = planned(allocator, Belief(np.ones(P), np.ones(P), np.array(variance)))
    weights = 1 / (np.array(variance) + epsilon)
    shares = budget * weights / weights.sum()
    assert counts.sum() == budget and counts.min() >= low and counts.max() <= high
    every = [n for n in itertools.product(range(low, high + 1), repeat=P) if sum(n) == budget]
    best = min(((np.array(n) - shares) ** 2).sum() for n in every)
    assert ((counts - shares) ** 2).sum() == pytest.approx(best, abs=1e-9)


def test_a_certain_prompt_gets_six_times_the_share_of_one_with_p_one_half():
    allocator = InverseVariance(rollouts_per_prompt=13, low=1)
    assert planned(allocator, Belief.from_mean([0.0, 1.0, 0.5])).tolist() == [18, 18, 3]


def test_the_variance_of_graded_rewards_decides_where_it_is_given():
    """Equal means; weights 1 / (.15 + .05) and 1 / (.95 + .05) are as 5 : 1."""
    belief = Belief(np.ones(2), np.ones(2), np.array([0.15, 0.95]))
    assert planned(InverseVariance(budget=24, low=1), belief).tolist() == [20, 4]


def test_certain_prompts_get_more_whether_right_or_wrong():
    rates = np.array([0.5, 0.3, 0.9, 0.05])
    allocator = InverseVariance(budget=41)
    there, back = (planned(allocator, Belief.from_mean(p)) for p in (rates, 1 - rates))
    assert there.tolist() == back.tolist()
    assert there[0] <= there[1] < there[2] < there[3]


def test_bounds_hold_where_shares_lie_beyond_them():
    allocator = InverseVariance(budget=26, low=3, high=10, epsilon=1e-3)
    assert planned(allocator, Belief.from_mean([1.0, 0.5, 0.0, 0.5])).tolist() == [10, 3, 10, 3]


def test_binary_rewards_are_needed_where_the_predictor_needs_them():
    assert InverseVariance().needs.binary
    assert not InverseVariance(predictor=UniformPrior()).needs.binary


@pytest.mark.parametrize("allocator", [InverseVariance(), InverseVariance(budget=99, epsilon=0.5, low=1)])
def test_settings_survive_the_way_through_toml(allocator):
    assert build(InverseVariance, tomllib.loads(to_toml(dump(allocator)))) == allocator
