"""Tests of the replay of recorded outcomes: the vendored data, its measures, and what the belief must keep to."""

import numpy as np
import pytest

from apportion.predictors import DiscountedCounts, EmpiricalBayes, Shuffled, UniformPrior
from benchmarks.real_run import predictors, replay
from benchmarks.real_run_data import DATA, Recorded, grpo_run
from benchmarks.real_run_tables import ratio


@pytest.fixture(scope="module")
def run():
    return grpo_run()


def test_the_data_are_small_and_whole(run):
    assert sum(path.stat().st_size for path in DATA.glob("*.npz")) < 1_500_000
    assert run.rewards.shape == (1209, 44, 8) and run.embeddings.shape == (1209, 384)
    assert np.isnan(run.rates).sum() == 1209 - 898
    assert 0.3 < run.shares[:, 0].mean() < run.shares[:, -1].mean() < 0.6  # the policy improves


def test_the_ratio_of_equal_pairs_has_no_spread():
    assert ratio([(1.0, 2.0)] * 5) == "0.500 [0.500, 0.500]"


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


def test_every_predictor_of_the_table_has_its_own_name(run):
    found = {name: make() for name, make in predictors(run).items()}
    assert isinstance(found["empirical Bayes, embeddings, shuffled"], Shuffled)
    assert found["one half for all"] == UniformPrior()


def test_the_belief_is_better_than_counts(run):
    ours, theirs = (replay(each, run, 3, 0, allocate=False).means for each in (EmpiricalBayes(), DiscountedCounts()))
    shares = run.shares[:, :3].T
    assert (((ours - shares) ** 2).mean(axis=1) < ((theirs - shares) ** 2).mean(axis=1)).all()
