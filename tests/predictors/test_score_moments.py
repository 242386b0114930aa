import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.baselines import Optimal
from apportion.predictors import ScoreMoments
from apportion.predictors.score_moments import optimal_baseline, second_moment
from apportion.types import Rollout
from tests.builders import finished
from tests.predictors.builders import make_prompts

moments = st.floats(0.01, 100)


def scored_batch(prompts, outcomes, norms):
    """Return a finished batch; ``outcomes`` and ``norms`` hold one list per prompt."""
    rollouts = [
        [Rollout(bool(r), score_norm=float(h)) for r, h in zip(rewards, squares, strict=True)]
        for rewards, squares in zip(outcomes, norms, strict=True)
    ]
    return finished(prompts, rollouts)


@given(st.floats(0, 1), st.floats(-1, 2), moments, moments)
def test_the_second_moment_is_that_of_the_enumerated_outcomes(p, b, right, wrong):
    norms = {1: [0.5 * right, 1.5 * right], 0: [0.2 * wrong, 1.8 * wrong]}
    outcomes = [((p if r else 1 - p) / 2, r, norms[r][i]) for r, i in itertools.product([0, 1], [0, 1])]
    expected = sum(chance * (r - b) ** 2 * square for chance, r, square in outcomes)
    assert second_moment(np.array([p]), np.array([b]), np.array([right]), np.array([wrong]))[0] == pytest.approx(
        expected
    )


@given(st.floats(0.001, 0.999), moments, moments)
def test_no_baseline_has_a_smaller_second_moment_than_the_optimal(p, right, wrong):
    p, right, wrong = (np.array([value]) for value in (p, right, wrong))
    best = second_moment(p, optimal_baseline(p, right, wrong), right, wrong)
    assert all(second_moment(p, np.array([b]), right, wrong) >= best * (1 - 1e-12) for b in np.linspace(-0.5, 1.5, 41))
    assert second_moment(p, p, right, wrong) == pytest.approx(p * (1 - p) * ((1 - p) * right + p * wrong))


def test_equal_norms_multiply_the_variance_of_the_reward():
    predictor, prompts = ScoreMoments(), make_prompts(3)
    predictor.update(scored_batch(prompts, [[1, 1, 1], [0, 1, 0], [0, 0, 0]], [[7.0] * 3] * 3))
    belief = predictor.predict(make_prompts(4))
    assert belief.variance == pytest.approx(7 * belief.mean * (1 - belief.mean))


@pytest.mark.parametrize("norm", [0.0, 1e-200])
@pytest.mark.parametrize("baseline", ["success", "optimal"])
def test_the_variance_is_positive_whatever_was_seen(norm, baseline):
    predictor, prompts = ScoreMoments(baseline=baseline), make_prompts(3)
    for _ in range(50):
        predictor.update(scored_batch(prompts[:2], [[1] * 50, [0] * 50], [[norm] * 50, [0.0] * 50]))
    assert (predictor.predict(prompts).variance > 0).all()


@pytest.mark.parametrize("norm", [None, float("nan"), -1.0])
@pytest.mark.parametrize("make", [ScoreMoments, Optimal])
def test_a_rollout_without_a_usable_score_norm_is_refused_before_learning(make, norm):
    learner, rollouts = make(), [Rollout(True, score_norm=1.0), Rollout(False, score_norm=norm)]
    with pytest.raises(ValueError, match=rf"score_norm for {learner.name}, got .* 'prompt 0'; have the sampler"):
        learner.update(finished(make_prompts(1), [rollouts]))
    np.testing.assert_equal(learner.state_dict(), make().state_dict())
