import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from apportion import Belief
from apportion.allocators.knapsack import value_gains
from apportion.allocators.spending.solver import spend

weights = st.floats(0.01, 50)


def value(p, n):
    """The value of a prompt, as the paper writes it."""
    return (1 - p**n - (1 - p) ** n) * p * (1 - p) ** 2


@given(weights, weights, st.integers(1, 40))
def test_gains_never_rise_and_are_at_least_zero(a, b, low):
    (gains,) = value_gains(Belief([a], [b]), low, 60)
    assert (gains >= 0).all() and (np.diff(gains) <= 0).all()


@pytest.mark.parametrize("low", [1, 5])
@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (0.7, 6.0), (30.0, 80.0)])
def test_gains_are_expected_differences_of_the_value(a, b, low):
    """By numerical integration over the belief."""
    density = stats.beta(a, b).pdf
    expected = [
        integrate.quad(lambda p, n=n: density(p) * (value(p, n + 1) - value(p, n)), 0, 1)[0]
        for n in range(low, low + 6)
    ]
    np.testing.assert_allclose(value_gains(Belief([a], [b]), low, 6)[0], expected, rtol=1e-6)


def test_a_prompt_that_always_failed_keeps_a_value():
    """With its mean of 0 in place of the belief it would never get more than the least."""
    failed = Belief.uniform(1).condition([0], [8])
    assert value_gains(failed, low=2, width=1)[0, 0] > 0
    assert value_gains(Belief([0.0], [8.0]), low=2, width=1)[0, 0] == 0


def test_prompts_without_any_value_share_what_is_left():
    gains = value_gains(Belief([0.0, 3.0, 1.0], [3.0, 0.0, 1.0]), low=2, width=4)
    counts = spend(gains, 14, np.full(3, 2))
    assert counts.tolist() == [4, 4, 6]
