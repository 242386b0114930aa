"""Tests of the closed form behind graded rewards, the search through all allocations, and the size of advantages."""

from itertools import product

import numpy as np
import pytest

from benchmarks.evidence.learning import HARD, learn
from benchmarks.evidence.vip_allocation_measured import allocations
from benchmarks.evidence.vip_graded_measured import unbiased_variance
from benchmarks.evidence.vip_learning_measured import AdvantageTrainer, signals


@pytest.mark.parametrize("n", [2, 3, 4])
def test_the_variance_of_graded_rewards_is_that_over_all_draws(n):
    rng = np.random.default_rng(0)
    rewards, gradients = rng.random(4), rng.normal(size=(4, 3))
    draws = np.array(list(product(range(4), repeat=n)))
    advantages = (rewards[draws] - rewards[draws].mean(1, keepdims=True)) * n / (n - 1)
    found = (advantages[:, :, None] * gradients[draws]).mean(1)
    assert unbiased_variance(gradients @ gradients.T, rewards, np.array([n])) == pytest.approx(found.var(0).sum())


def test_all_allocations_are_listed_once():
    every = allocations(3, 12, 3, 5)
    assert len(np.unique(every, axis=0)) == len(every) == 7
    assert (every.sum(1) == 12).all() and every.min() == 3 and every.max() == 5


def test_the_size_of_advantages_is_that_of_rewards_about_their_mean(small_base_folder):
    """A group of which a share r is right has a mean size of 2 r (1 - r), which is concave in r."""
    tiny = {**HARD, "base": small_base_folder, "estimator": "dr_grpo", "rollouts": 512, "held_out": 2}
    found = learn({"name": "uniform", "rollouts_per_prompt": 32}, 0, tiny, signals, AdvantageTrainer)
    assert 0 < found["absolute advantage"] <= 2 * found["reward"] * (1 - found["reward"])
    assert found["reward"] == pytest.approx(found["success"], abs=0.1)
