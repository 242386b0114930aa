from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.predictors.spread import spreads
from apportion.types import Batch, Belief, Plan, Rollout
from tests.predictors.builders import graded_batch, make_prompts

rewards = st.floats(-1e6, 1e6)


@given(st.lists(st.lists(rewards, max_size=6), min_size=1, max_size=5))
def test_the_variance_is_the_unbiased_one_of_every_prompt_with_two_rewards(groups):
    prompts = make_prompts(len(groups))
    found = spreads(graded_batch(prompts, groups))
    expected = {prompt: np.var(group, ddof=1) for prompt, group in zip(prompts, groups, strict=True) if len(group) > 1}
    assert [seen.prompt for seen in found] == list(expected)
    np.testing.assert_allclose([seen.variance for seen in found], list(expected.values()), rtol=1e-6, atol=1e-9)


@given(rewards, st.integers(2, 20))
def test_equal_rewards_have_no_variance_at_all(reward, count):
    [seen] = spreads(graded_batch(make_prompts(1), [[reward] * count]))
    assert seen.squares == 0.0 and seen.freedom == count - 1


def test_the_rewards_of_a_repeated_prompt_are_taken_together():
    a, b = make_prompts(2)
    [first, second] = spreads(graded_batch([a, b, a], [[0.0], [1.0, 3.0], [1.0]]))
    assert first == (a, 0.5, 1) and second == (b, 2.0, 1)


def test_binary_rewards_are_rewards_and_unverified_rollouts_are_not():
    batch = Batch.start(make_prompts(1), Belief.uniform(1))
    batch = batch.add(Plan([4]), [[Rollout(True), Rollout(False), Rollout(answer="7")]])
    assert spreads(batch)[0].variance == pytest.approx(0.5)
