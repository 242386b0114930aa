"""Tests of the closed form behind graded rewards, and of the search through all allocations."""

from itertools import product

import numpy as np
import pytest

from benchmarks.evidence.vip_allocation_measured import allocations
from benchmarks.evidence.vip_graded_measured import unbiased_variance


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
