import numpy as np
import pytest

from apportion.advantages import sequential


def test_every_advantage_is_the_reward_less_the_mean_of_the_others_so_far():
    rng = np.random.default_rng(2)
    rewards, ids, rounds = rng.normal(size=30), rng.integers(4, size=30), rng.integers(3, size=30)
    for i, advantage in enumerate(sequential(rewards, ids, rounds=rounds)):
        others = (ids == ids[i]) & (rounds <= rounds[i]) & (np.arange(30) != i)
        assert advantage == pytest.approx(rewards[i] - rewards[others].mean() if others.any() else 0.0)
