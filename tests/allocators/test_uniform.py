import pytest

from apportion import Uniform
from tests.builders import make_batch


def test_every_prompt_gets_the_same_and_failures_are_not_refilled():
    allocator = Uniform(rollouts_per_prompt=3)
    assert allocator.plan(make_batch([[], []])).counts.tolist() == [3, 3]
    assert allocator.plan(make_batch([[1, 0, 1], [0]])).counts.tolist() == [0, 2]


def test_less_than_one_rollout_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Uniform(rollouts_per_prompt=0)
