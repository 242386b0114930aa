import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.baselines import Optimal
from apportion.predictors import EmpiricalBayes, GradedGaussianProcess, PrecomputedEmbeddings, RunningVariance
from apportion.predictors.statistics.per_prompt import Range, rewards, widened
from apportion.types import Rollout
from tests.builders import finished
from tests.predictors.builders import graded_batch, make_prompts

reward = st.floats(-1e6, 1e6)
WIDE = Range(-1e6, 1e6)


@given(st.lists(st.lists(reward, max_size=6), min_size=1, max_size=5))
def test_moments_are_those_of_all_rewards_of_a_prompt(groups):
    prompts = make_prompts(len(groups))
    found, _ = rewards(graded_batch(prompts, groups), WIDE)
    expected = {prompt: group for prompt, group in zip(prompts, groups, strict=True) if group}
    assert [seen.prompt for seen in found] == list(expected)
    assert [seen.graded for seen in found] == [not set(group) <= set(WIDE) for group in expected.values()]
    for seen, group in zip(found, expected.values(), strict=True):
        of_all = len(group), np.mean(group), np.var(group) * len(group)
        np.testing.assert_allclose(seen[1:4], of_all, rtol=1e-6, atol=1e-9)


@given(reward, st.integers(2, 20))
def test_equal_rewards_have_a_variance_of_exactly_0(reward, count):
    [seen], _ = rewards(graded_batch(make_prompts(1), [[reward] * count]))
    assert seen.squares == 0.0 and seen.trials == count


def test_rewards_of_a_repeated_prompt_are_pooled():
    a, b = make_prompts(2)
    found, _ = rewards(graded_batch([a, b, a], [[0.0], [1.0, 3.0], [1.0]]), WIDE)
    assert found == [(a, 2, 0.5, 0.5, True), (b, 2, 2.0, 2.0, True)]


def test_unverified_rollouts_have_no_reward():
    batch = finished(make_prompts(1), [[Rollout(True), Rollout(False), Rollout(answer="7")]], asked=[4])
    assert rewards(batch)[0][0].squares == pytest.approx(0.5)


WITHIN, BEYOND = [[0.0, 1.0], [0.2, 0.4], [0.5, 0.5], [1.0, 0.0]] * 6, [[0.1, 0.9], [0.3, 0.2]] * 12


def learned(make, batches):
    """Return what is predicted of 24 prompts after ``batches`` of rewards."""
    prompts = make_prompts(24)
    embedder = PrecomputedEmbeddings.from_array(prompts, np.arange(24.0)[:, None])
    learner = make(embedder) if make is GradedGaussianProcess else make()
    for groups in batches:
        batch = graded_batch(prompts[: len(groups)], groups, score_norm=1.0)
        getattr(learner, "update" if hasattr(learner, "update") else "observe")(batch)
    found = learner.predict(prompts)
    return found if make is Optimal else found.variance


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("outlier", [1e9, -1e9])
@pytest.mark.parametrize("make", [RunningVariance, GradedGaussianProcess, EmpiricalBayes, Optimal])
def test_one_reward_in_a_batch_far_out_of_range_counts_as_the_end_of_the_range(make, outlier, first):
    """In each of twenty batches. The range of the others is [0, 1]."""
    found = []
    for last in (outlier, float(outlier > 0)):
        further = [[*BEYOND[:7], [0.1, last], *BEYOND[8:]]] * 20
        found.append(learned(make, [*further, WITHIN] if first else [WITHIN, *further]))
    np.testing.assert_allclose(*found)
    assert np.abs(found[0]).max() < 10


def test_the_range_grows_to_what_is_near_and_to_what_more_than_a_twentieth_are():
    flat = [0.0, 1.0] * 47
    assert widened(Range(), np.array([*flat, 1.9, 2.1, 50.0])) == (0.0, 1.9)
    assert widened(Range(), np.array([*flat, *[50.0] * 5])) == (0.0, 1.0)
    assert widened(Range(), np.array([*flat, *[50.0] * 6])) == (0.0, 2.0)
    assert widened(None, np.array([*flat, *[50.0] * 6])) == (0.0, 50.0)
