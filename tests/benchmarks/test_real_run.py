"""Tests of the replay of recorded outcomes: the vendored data, its measures, and what the belief must keep to."""

import pytest

from apportion.predictors import DiscountedCounts, EmpiricalBayes
from benchmarks.real_run import replay
from benchmarks.real_run_data import grpo_run


@pytest.fixture(scope="module")
def run():
    return grpo_run()


def test_the_belief_is_better_than_counts(run):
    ours, theirs = (replay(each, run, 3, 0, allocate=False).means for each in (EmpiricalBayes(), DiscountedCounts()))
    shares = run.shares[:, :3].T
    assert (((ours - shares) ** 2).mean(axis=1) < ((theirs - shares) ** 2).mean(axis=1)).all()
