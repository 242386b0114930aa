import numpy as np
import pytest

from apportion.advantages import gae


def random_batch(seed=0, length=7):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, length + 1, size=5)
    mask = np.arange(length) < lengths[:, None]
    return rng.normal(size=(5, length)), rng.normal(size=(5, length)), mask, lengths


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.8), (1.0, 0.0), (0.0, 0.5)])
def test_it_is_the_discounted_sum_of_temporal_differences(gamma, lam):
    rewards, values, mask, lengths = random_batch()
    advantages, returns = gae(rewards, values, mask, gamma, lam)
    for i, length in enumerate(lengths):
        r, v = rewards[i, :length], np.append(values[i, :length], 0.0)
        errors = r + gamma * v[1:] - v[:-1]
        expected = [sum((gamma * lam) ** (u - t) * errors[u] for u in range(t, length)) for t in range(length)]
        np.testing.assert_allclose(advantages[i, :length], expected)
        np.testing.assert_allclose(returns[i, :length], expected + v[:-1])


def test_tokens_outside_the_mask_are_skipped():
    rewards, values, mask, _ = random_batch(seed=2)
    wide = [np.insert(array, 2, filler, axis=1) for array, filler in ((rewards, 9.0), (values, 9.0), (mask, False))]
    advantages, returns = gae(*wide, 0.9, 0.8)
    plain = gae(rewards, values, mask, 0.9, 0.8)
    np.testing.assert_array_equal(np.delete(advantages, 2, axis=1), plain[0])
    np.testing.assert_array_equal(np.delete(returns, 2, axis=1), plain[1])
