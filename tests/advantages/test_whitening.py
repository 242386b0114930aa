import numpy as np
import pytest

from apportion.advantages import whiten


def test_within_the_mask_mean_and_variance_are_0_and_1():
    rng = np.random.default_rng(0)
    values, mask = rng.normal(3, 5, (6, 9)), rng.random((6, 9)) < 0.6
    white = whiten(values, mask)
    assert white[mask].mean() == pytest.approx(0, abs=1e-12)
    assert white[mask].var(ddof=1) == pytest.approx(1)
    assert (white[~mask] == 0).all()


def test_numbers_of_tokens_count_as_so_many_equal_values():
    values, tokens = np.array([0.0, 1.0, 5.0, 7.0]), np.array([3, 1, 0, 4])
    repeated = np.repeat(values, tokens)
    np.testing.assert_allclose(np.repeat(whiten(values, tokens), tokens), whiten(repeated, np.ones(8)))


@pytest.mark.parametrize("values", [[], [0.1], [0.1] * 7])
def test_equal_values_become_exactly_0(values):
    assert (whiten(values, np.ones(len(values))) == 0).all()


@pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0], [1.0, np.inf]])
def test_weights_that_count_nothing_are_refused(weights):
    with pytest.raises(ValueError, match="weights must be at least 0"):
        whiten([1.0, 2.0], weights)
