"""Tests of the replay of recorded outcomes: the vendored data, its measures, and what the belief must keep to."""

import numpy as np
import pytest

from apportion.predictors import DiscountedCounts, EmpiricalBayes
from benchmarks.real_run import replay
from benchmarks.real_run_data import Recorded, grpo_run


@pytest.fixture(scope="module")
def run():
    return grpo_run()


def test_predictors_do_not_see_the_group_that_they_predict():
    """Whatever is recorded at the last visit, its predictions are the same."""
    rng = np.random.default_rng(0)
    rewards = (rng.random((40, 2, 8)) < 0.5).astype(float)
    changed = rewards.copy()
    changed[:, 1] = 1 - changed[:, 1]
    one, other = (
        replay(EmpiricalBayes(), Recorded(each, np.zeros((40, 1)), np.full(40, np.nan)), 2, 0, allocate=False)
        for each in (rewards, changed)
    )
    np.testing.assert_array_equal(one.means[0], other.means[0])


def test_the_belief_is_better_than_counts(run):
    ours, theirs = (replay(each, run, 3, 0, allocate=False).means for each in (EmpiricalBayes(), DiscountedCounts()))
    shares = run.shares[:, :3].T
    assert (((ours - shares) ** 2).mean(axis=1) < ((theirs - shares) ** 2).mean(axis=1)).all()
