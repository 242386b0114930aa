import itertools
import tomllib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion import Batch, Belief, InverseAccuracy
from apportion.config import build, dump, to_toml
from apportion.predictors import MeanLengths, UniformPrior
from tests.builders import make_batch, make_prompts

probabilities = st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1)


def planned(allocator, belief):
    return allocator.plan(make_batch([[]] * len(belief), belief)).counts


@settings(max_examples=150, deadline=None)
@given(success=st.lists(probabilities, min_size=1, max_size=4), data=st.data())
def test_no_integer_counts_within_budget_and_bounds_are_nearer_to_the_shares(success, data):
    low, epsilon = data.draw(st.integers(1, 3)), data.draw(st.floats(0.001, 10))
    high = low + data.draw(st.integers(0, 6))
    budget = data.draw(st.integers(low * len(success), high * len(success)))
    allocator = InverseAccuracy(budget=budget, low=low, high=high, epsilon=epsilon)
    counts = planned(allocator, Belief.from_mean(success))
    weights = 1 - np.array(success) + epsilon
    shares = budget * weights / weights.sum()
    assert counts.sum() == budget and counts.min() >= low and counts.max() <= high
    every = [n for n in itertools.product(range(low, high + 1), repeat=len(success)) if sum(n) == budget]
    best = min(((np.array(n) - shares) ** 2).sum() for n in every)
    assert ((counts - shares) ** 2).sum() == pytest.approx(best, abs=1e-9)


def test_shares_that_are_integers_within_the_bounds_are_met_exactly():
    """Weights 1 - p + .1 of .9, .6 and .3 are as 3 : 2 : 1."""
    allocator = InverseAccuracy(budget=36, low=1, epsilon=0.1)
    assert planned(allocator, Belief.from_mean([0.2, 0.5, 0.8])).tolist() == [18, 12, 6]


def test_a_large_epsilon_splits_evenly():
    allocator = InverseAccuracy(rollouts_per_prompt=8, epsilon=1e6)
    assert planned(allocator, Belief.from_mean([0.0, 0.3, 1.0])).tolist() == [8, 8, 8]


def test_a_prompt_without_history_gets_the_share_of_the_average_prompt():
    """Success rates of 1 and 0 were seen, so that the new prompt gets .5."""
    allocator = InverseAccuracy(rollouts_per_prompt=8, low=1)
    allocator.observe(make_batch([[1, 1], [0, 0]]))
    assert allocator.plan(allocator.start(make_prompts(3))).counts.tolist() == [1, 15, 8]


def test_binary_rewards_are_needed_whatever_the_predictor():
    """A predictor of graded rewards does not predict accuracy: the split would silently be even."""
    assert InverseAccuracy().needs.binary
    assert InverseAccuracy(predictor=UniformPrior()).needs.binary


def test_a_token_budget_buys_counts_in_proportion_to_the_weights():
    """Prompts of equal weight get equally many rollouts, long or short."""
    allocator = InverseAccuracy(tokens_per_prompt=200, lengths=MeanLengths(initial=10), low=1)
    prompts = make_prompts(3)
    batch = Batch.start(prompts, Belief.from_mean([0.4, 0.4, 1.0]), costs=[10.0, 30.0, 20.0])
    counts = allocator.plan(batch).counts
    assert counts.tolist() == [14, 14, 1]
    assert batch.costs @ counts <= 600


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"low": 0}, "low must be at least 1 for inverse_accuracy, got 0"),
        ({"epsilon": 0.0}, "epsilon must be finite and above 0 for inverse_accuracy, got 0"),
        ({"epsilon": float("nan")}, "epsilon must be finite and above 0 for inverse_accuracy, got nan"),
        ({"low": 8, "high": 4}, "high must be at least 8"),
        ({"rollouts_per_prompt": 2}, "between 3 and 64, got 2"),
    ],
)
def test_wrong_settings_are_refused_at_construction(settings, message):
    with pytest.raises(ValueError, match=message):
        InverseAccuracy(**settings)


@pytest.mark.parametrize("allocator", [InverseAccuracy(), InverseAccuracy(budget=99, low=1, predictor=UniformPrior())])
def test_settings_survive_the_way_through_toml(allocator):
    assert build(InverseAccuracy, tomllib.loads(to_toml(dump(allocator)))) == allocator
