"""Counts in inverse proportion to accuracy or to variance: the nearest integers to the shares."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion import Belief, InverseAccuracy, InverseVariance
from apportion.predictors import UniformPrior
from tests.builders import make_batch, make_prompts, splits

WEIGHTS = {
    InverseAccuracy: lambda belief, epsilon: 1 - belief.mean + epsilon,
    InverseVariance: lambda belief, epsilon: 1 / (belief.variance + epsilon),
}


def planned(allocator, belief):
    return allocator.plan(make_batch([[]] * len(belief), belief)).counts


@pytest.mark.parametrize("rule", WEIGHTS)
@settings(max_examples=60, deadline=None)
@given(mean=st.lists(st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1), min_size=1, max_size=4), data=st.data())
def test_no_integer_counts_within_budget_and_bounds_are_nearer_to_the_shares(rule, mean, data):
    """The variance is that of graded rewards where it is given: here twice the mean."""
    low, epsilon, P = data.draw(st.integers(1, 3)), data.draw(st.floats(0.001, 10)), len(mean)
    high = low + data.draw(st.integers(0, 6))
    budget = data.draw(st.integers(low * P, high * P))
    mean = np.array(mean)
    belief = Belief.from_mean(mean) if rule is InverseAccuracy else Belief(np.ones(P), np.ones(P), 2 * mean)
    counts = planned(rule(budget=budget, low=low, high=high, epsilon=epsilon), belief)
    weights = WEIGHTS[rule](belief, epsilon)
    shares = budget * weights / weights.sum()
    assert counts.sum() == budget and counts.min() >= low and counts.max() <= high
    best = min(((n - shares) ** 2).sum() for n in splits(budget, low, high, P))
    assert ((counts - shares) ** 2).sum() == pytest.approx(best, abs=1e-9)


def test_a_prompt_without_history_gets_the_share_of_the_average_prompt():
    """Success rates of 1 and 0 were seen, so that the new prompt gets .5."""
    allocator = InverseAccuracy(rollouts_per_prompt=8, low=1)
    allocator.observe(make_batch([[1, 1], [0, 0]]))
    assert allocator.plan(allocator.start(make_prompts(3))).counts.tolist() == [1, 15, 8]


def test_binary_rewards_are_needed_where_accuracy_or_the_predictor_needs_them():
    """A predictor of graded rewards does not predict accuracy: the split would silently be even."""
    assert InverseVariance().needs.binary and not InverseVariance(predictor=UniformPrior()).needs.binary
    assert InverseAccuracy().needs.binary and InverseAccuracy(predictor=UniformPrior()).needs.binary
