import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion import Uniform
from apportion.allocators.uniform import even_split
from tests.builders import make_batch


def test_every_prompt_gets_the_same_and_failures_are_not_refilled():
    allocator = Uniform(rollouts_per_prompt=3)
    assert allocator.plan(make_batch([[], []])).counts.tolist() == [3, 3]
    assert allocator.plan(make_batch([[1, 0, 1], [0]])).counts.tolist() == [0, 2]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(5, 9), st.data())
def test_even_split_is_level(low, high, data):
    bounds = np.array(low)
    budget = data.draw(st.integers(int(bounds.sum()), high * len(low)))
    counts = even_split(budget, bounds, high)
    assert counts.sum() == budget and (counts >= bounds).all() and counts.max() <= high
    raised = counts[counts > bounds]
    assert not raised.size or counts.min() >= raised.max() - 1


def test_less_than_one_rollout_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Uniform(rollouts_per_prompt=0)
