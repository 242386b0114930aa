import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.predictors import RunningVariance
from tests.predictors.builders import graded_batch, make_prompts

groups = st.lists(st.floats(0, 1), max_size=6)


@given(st.lists(groups, max_size=6), st.floats(0, 1))
def test_a_single_prompt_has_its_discounted_variance(history, discount):
    predictor, prompts = RunningVariance(discount, strength=3.0), make_prompts(1)
    for rewards in history:
        predictor.update(graded_batch(prompts, [rewards]))
    seen = [(np.var(rewards, ddof=1), len(rewards) - 1) for rewards in history if len(rewards) > 1]
    weights = [discount**age * freedom for age, (_, freedom) in zip(range(len(seen))[::-1], seen, strict=True)]
    expected = np.average([variance for variance, _ in seen], weights=weights) if seen else 0.25
    assert predictor.predict(prompts).variance[0] == pytest.approx(expected, abs=1e-9)


def test_a_prompt_never_seen_has_the_mean_over_prompts_with_equal_weights():
    predictor, prompts = RunningVariance(), make_prompts(3)
    predictor.update(graded_batch(prompts[:2], [[0.0, 2.0] * 20, [0.4, 0.6]]))
    assert predictor.predict(prompts[2:]).variance[0] == pytest.approx((40 / 39 + 0.02) / 2)


def test_a_prompt_outside_the_batch_keeps_its_spread():
    predictor, prompts = RunningVariance(discount=0.5, strength=4.0), make_prompts(2)
    predictor.update(graded_batch(prompts, [[0.0, 1.0], [0.0, 1.0]]))
    predictor.update(graded_batch(prompts[:1], [[0.0, 3.0]]))
    # squares 0.5 / 2 + 4.5 over freedom 1.5, and 0.5 over 1, shrunk towards their mean as by a conjugate prior
    pooled = (2.25 / 1.5 + 0.5) / 2
    expected = [(4 * pooled + 2.25) / 5.5, (4 * pooled + 0.5) / 5]
    np.testing.assert_allclose(predictor.predict(prompts).variance, expected)
