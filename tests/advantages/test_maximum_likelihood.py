import numpy as np
import pytest

from apportion.advantages import maxrl, sft
from tests.advantages.bernoulli import until_correct


def truncated_slope(p, order):
    """Gradient of log p's expansion up to the term ``order``: the sum of grad pass@k / k."""
    return sum((1 - p) ** (k - 1) for k in range(1, order + 1)) * p * (1 - p)


@pytest.mark.parametrize("p", [0.05, 0.4, 0.9])
@pytest.mark.parametrize("n", [1, 2, 6])
def test_they_are_unbiased_for_the_truncated_log_likelihood(p, n):
    """Theorem 2 of the paper for ``sft``; the control variate of ``maxrl`` costs the last term."""
    fixed = until_correct(p, [n])
    expected = {sft: truncated_slope(p, n), maxrl: truncated_slope(p, n - 1)}
    for estimator, truth in expected.items():
        estimate = fixed.expect(estimator(fixed.rewards, fixed.group_ids), "prompt")
        assert estimate == pytest.approx(truth, rel=1e-12, abs=1e-15)


def test_sft_imitates_correct_rollouts_alone_and_every_prompt_with_one_weighs_the_same():
    rewards, ids = np.array([1, 0, 0, 0, 1, 1, 0, 1, 0]), np.array([0, 0, 0, 0, 1, 1, 1, 2, 3])
    advantages = sft(rewards, ids)
    assert (advantages[rewards == 0] == 0).all()
    np.testing.assert_allclose(np.bincount(ids, advantages) / np.bincount(ids), [1, 1, 1, 0])
