import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.baselines import Optimal
from apportion.predictors import EmpiricalBayes, GradedGaussianProcess, PrecomputedEmbeddings, RunningVariance
from apportion.predictors.statistics.per_prompt import Range, observations, spreads
from apportion.types import Rollout
from tests.builders import finished
from tests.predictors.builders import graded_batch, make_batch, make_prompts

rewards = st.floats(-1e6, 1e6)
WIDE = Range(-1e6, 1e6)


@given(st.lists(st.lists(rewards, max_size=6), min_size=1, max_size=5))
def test_the_variance_is_the_unbiased_one_for_prompts_with_two_rewards_or_more(groups):
    prompts = make_prompts(len(groups))
    found, _ = spreads(graded_batch(prompts, groups), WIDE)
    expected = {prompt: np.var(group, ddof=1) for prompt, group in zip(prompts, groups, strict=True) if len(group) > 1}
    assert [seen.prompt for seen in found] == list(expected)
    np.testing.assert_allclose([seen.variance for seen in found], list(expected.values()), rtol=1e-6, atol=1e-9)


@given(rewards, st.integers(2, 20))
def test_equal_rewards_have_a_variance_of_exactly_0(reward, count):
    [seen], _ = spreads(graded_batch(make_prompts(1), [[reward] * count]))
    assert seen.squares == 0.0 and seen.freedom == count - 1


def test_rewards_of_a_repeated_prompt_are_pooled():
    a, b = make_prompts(2)
    [first, second], _ = spreads(graded_batch([a, b, a], [[0.0], [1.0, 3.0], [1.0]]), WIDE)
    assert first == (a, 0.5, 1) and second == (b, 2.0, 1)


def test_unverified_rollouts_have_no_reward():
    batch = finished(make_prompts(1), [[Rollout(True), Rollout(False), Rollout(answer="7")]], asked=[4])
    assert spreads(batch)[0][0].variance == pytest.approx(0.5)


def test_observations_pool_a_repeated_prompt_and_leave_out_those_without_trials():
    a, b = make_prompts(2)
    pooled = observations(make_batch([a, b, a], [1, 0, 2], [2, 0, 4]))
    assert pooled == [(a, 3, 6)]
    assert pooled[0].rate == 0.5


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("outlier", [1e9, -1e9])
@pytest.mark.parametrize("make", [RunningVariance, GradedGaussianProcess, EmpiricalBayes, Optimal])
def test_one_reward_far_out_of_range_counts_as_the_end_of_the_range(make, outlier, first):
    """Of rewards in [0, 1], and one of 1e9: the same is learned as if it had been 2, and as if it had been -1."""
    prompts = make_prompts(4)
    embedder = PrecomputedEmbeddings.from_array(prompts, np.arange(4.0)[:, None])
    learned = []
    for last in (outlier, 2.0 if outlier > 0 else -1.0):
        learner = make(embedder) if make is GradedGaussianProcess else make()
        batches = [[0.0, 1.0], [0.2, 0.4], [0.5, 0.5], [1.0, 0.0]], [[0.1, last], [0.3, 0.2]]
        for rewards in reversed(batches) if first else batches:
            batch = graded_batch(prompts[: len(rewards)], rewards, score_norm=1.0)
            getattr(learner, "update" if hasattr(learner, "update") else "observe")(batch)
        found = learner.predict(prompts)
        learned.append(found if make is Optimal else found.variance)
    np.testing.assert_allclose(*learned)
    assert np.abs(learned[0]).max() < 10
