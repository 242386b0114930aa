"""``spend`` against brute force and dynamic programming."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.allocators.spending.solver import even_split, most_extra, spend, spend_widening


def test_a_prompt_that_may_not_have_more_gets_none():
    gains = np.array([[0.9, -np.inf], [0.1, 0.1]])
    assert spend(gains, 3, np.array([0, 0])).tolist() == [1, 2]


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
