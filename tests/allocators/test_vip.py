import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.allocators import printed_counts
from apportion.allocators.spending import printed
from apportion.allocators.vip import gradient_variance, minimise_variance
from tests.builders import splits

ESTIMATORS = ("rloo", "dr_grpo")
probabilities = st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]) | st.floats(0, 1)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@settings(max_examples=60, deadline=None)
@given(success=st.lists(probabilities, min_size=1, max_size=4), data=st.data())
def test_no_integer_allocation_has_less_variance(estimator, success, data):
    success, low = np.array(success), data.draw(st.integers(3, 4))
    high = low + data.draw(st.integers(0, 5))
    budget = data.draw(st.integers(low * len(success), high * len(success)))
    counts = minimise_variance(success, budget, estimator, low, high)
    assert counts.sum() == budget and counts.min() >= low and counts.max() <= high
    best = min(gradient_variance(success, n, estimator).sum() for n in splits(budget, low, high, len(success)))
    assert gradient_variance(success, counts, estimator).sum() == pytest.approx(best, abs=1e-12)


def test_the_printed_route_of_the_paper_is_not_always_best():
    """Its multiplier is not unique, and rounding down can leave a prompt with more than its best number."""
    roots = np.array([2.667, 2.667, 2.667, 10.03])
    real = printed.relaxed(roots**2, 22, 3, 12, "rloo")
    counts = printed.rounded(real, roots**2, 22, 3, 12, "rloo")
    assert real.sum() == pytest.approx(22) and counts.tolist() == [4, 4, 3, 11]
    excess = [printed.variance(roots**2, np.array(each), "rloo").sum() for each in (counts, [4, 4, 4, 10])]
    assert excess[0] / excess[1] == pytest.approx(1.0037, abs=1e-4)
    a = np.array([1.0, 1e-6])
    assert printed.rounded(printed.relaxed(a, 8, 3, 5, "rloo"), a, 8, 3, 5, "rloo").tolist() == [5, 3]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_printed_route_fills_all_prompts_to_their_upper_bound(estimator):
    """No multiplier is too small for it, and the ratio to a small one overflowed: a warning, which is an error here."""
    for high in (3, 5, 10**9):
        assert printed_counts([0.1, 1.0], 2 * high, 3, high, estimator).tolist() == [high, high]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_variance_formulas_hold_for_simulated_groups(estimator):
    """Propositions 4.2 and 4.3 by Monte Carlo under Assumption 4.1: rewards in {-1, 1}, Z independent of them."""
    rng = np.random.default_rng(0)
    success, n, sigma = 0.3, 5, 0.7
    rewards = np.where(rng.random((100_000, n)) < success, 1.0, -1.0)
    z = rng.normal(0.0, sigma, rewards.shape)
    baseline = rewards.mean(axis=1, keepdims=True)
    if estimator == "rloo":
        baseline = (rewards.sum(axis=1, keepdims=True) - rewards) / (n - 1)
    measured = ((rewards - baseline) * z).mean(axis=1).var()
    expected = gradient_variance(np.array([success]), np.array([n]), estimator)[0] * sigma**2
    assert measured == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_single_rollout_has_infinite_variance_unless_the_prompt_is_certain(estimator):
    variance = gradient_variance(np.array([0.5, 0.0, 1.0]), np.array([1, 1, 1]), estimator)
    assert variance.tolist() == [np.inf if estimator == "rloo" else 0.0, 0.0, 0.0]
