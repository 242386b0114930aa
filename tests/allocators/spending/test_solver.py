"""``spend`` against brute force and dynamic programming."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.allocators.spending.knapsack import spend_costs
from apportion.allocators.spending.solver import even_split, most_extra, spend, spend_widening


def test_a_prompt_that_may_not_have_more_gets_none():
    gains = np.array([[0.9, -np.inf], [0.1, 0.1]])
    assert spend(gains, 3, np.array([0, 0])).tolist() == [1, 2]
    with pytest.raises(ValueError, match=r"between 0 and 3 .* got 4"):
        spend(gains, 4, np.array([0, 0]))


@pytest.mark.slow
def test_many_prompts_fit_in_memory():
    rng = np.random.default_rng(1)
    gains = rng.random(200_000)[:, None] * (1 / np.arange(2.0, 32.0))
    low = np.full(len(gains), 3)
    tracemalloc.start()
    counts = spend(gains, 1_600_000, low)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert counts.sum() == 1_600_000
    assert peak < 1.5 * gains.nbytes


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(5, 9), st.data())
def test_even_split_is_level(low, high, data):
    bounds = np.array(low)
    budget = data.draw(st.integers(int(bounds.sum()), high * len(low)))
    counts = even_split(budget, bounds, high)
    assert counts.sum() == budget and (counts >= bounds).all() and counts.max() <= high
    raised = counts[counts > bounds]
    assert not raised.size or counts.min() >= raised.max() - 1


@given(st.data())
def test_a_table_that_widens_gives_the_counts_of_the_whole_table(data):
    """Few distinct gains, so that there are ties, and some prompts that take far more than others."""
    prompts, high = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 400))
    low = np.array(data.draw(st.lists(st.integers(0, high), min_size=prompts, max_size=prompts)))
    budget = data.draw(st.integers(int(low.sum()), prompts * high))
    scale = np.array(data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 50.0]), min_size=prompts, max_size=prompts)))

    def gains(width):
        number = np.arange(width)
        return np.where(low[:, None] + number < high, scale[:, None] / (1 + number // 3), -np.inf)

    whole = spend(gains(most_extra(low, high, budget)), budget, low)
    assert spend_widening(gains, budget, low, high).tolist() == whole.tolist()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_gains_that_are_not_finite_are_refused_and_not_underspent(bad):
    gains = np.array([[0.5, 0.1], [bad, bad]])
    with pytest.raises(ValueError, match=r"gains must be finite, .* for prompt 1; check the predictions"):
        spend(gains, 4, np.array([1, 1]))
    with pytest.raises(ValueError, match="gains must be finite"):
        spend_costs(gains, 8, np.array([1, 1]), [1, 2])


@pytest.mark.parametrize(
    ("gains", "budget", "low", "message"),
    [
        (np.ones((2, 1)), 5, [3, 3], "between 6 and 8 for these 2 prompts, got 5"),
        *((np.ones((2, 4)), budget, [1, 1], "budget must be an integer") for budget in ("4", 4.5, True, None, np.nan)),
        (np.ones((2, 4)), 4, [1, 1, 1], r"gains must be \[P, W\] and low \[P\]"),
        (np.ma.masked_equal(np.ones((2, 4)), 1), 4, [1, 1], "gains must not be masked"),
    ],
)
def test_what_cannot_be_spent_is_refused(gains, budget, low, message):
    with pytest.raises(ValueError, match=message):
        spend(gains, budget, np.array(low))
