"""Tests of the common shift of log-odds."""

import numpy as np
import pytest
from hypothesis import given, strategies
from hypothesis.extra.numpy import arrays

from apportion.predictors.statistics.beta_binomial import logit
from apportion.predictors.statistics.drift import LARGEST_STEP, Drift, moved

TOGETHER = 1 / (1 / 8 + 1 / 80)
"""w of 8 rewards after 80."""


def after(drift, means, shares, own=None):
    """Return the drift after prompts of 80 rewards whose mean is the belief's, unless it is given, got 8 more."""
    means, shares = np.atleast_1d(means).astype(float), np.atleast_1d(shares).astype(float)
    return drift.after(means, shares - (means if own is None else own), np.full(len(means), TOGETHER))


@pytest.mark.parametrize("pace", [0.0, 0.1])
@pytest.mark.parametrize("size", [2, 200])
def test_the_offset_follows_a_population_of_this_pace(pace, size):
    rng, drift = np.random.default_rng(0), Drift()
    p = start = rng.beta(2, 2, 200)
    for _ in range(25):
        p = moved(p, pace)
        for some in np.array_split(rng.permutation(200), 200 // size):
            drift = after(drift, moved(start[some], drift.offset), rng.binomial(8, p[some]) / 8)
    assert drift.offset == pytest.approx((logit(p) - logit(start)).mean(), abs=0.2)


def test_fewer_than_16_prompts_show_no_step_and_wait_for_others():
    drift = Drift()
    for _ in range(15):
        drift = after(drift, 0.5, 0.9)
    assert drift.offset == 0.0
    assert after(drift, 0.5, 0.9).offset > 1.0 and after(drift, 0.5, 0.9).prompts == 0


def test_prompts_that_all_beliefs_pull_to_the_mean_show_no_step():
    """Easy prompts only: the belief of each is too low by .1, as always when a prior counts."""
    assert after(Drift(), [0.8] * 64, [0.9] * 64, own=0.9).offset == 0.0


def test_prompts_that_are_nearly_certain_show_no_step():
    assert after(Drift(), [1e-9, 1 - 1e-9] * 32, [0.0, 1.0] * 32).offset == 0.0


RATES = strategies.sampled_from([0.0, 1e-12, 0.01, 0.3, 0.5, 0.99, 1.0])
BATCHES = strategies.integers(0, 20).flatmap(
    lambda size: strategies.tuples(
        *[arrays(float, size, elements=RATES)] * 3,
        arrays(float, size, elements=strategies.sampled_from([0.01, 1.0, 8.0, 1e6])),
    )
)


@given(strategies.lists(BATCHES, max_size=6))
def test_no_batch_of_any_size_and_content_moves_more_than_2(batches):
    drift = Drift()
    for means, own, shares, weights in batches:
        before, drift = drift.offset, drift.after(means, shares - own, weights)
        assert abs(drift.offset - before) <= LARGEST_STEP and np.isfinite(drift).all()


@given(RATES, strategies.floats(-1e9, 1e9))
def test_a_moved_probability_stays_one(p, shift):
    assert 0 <= moved(np.array(p), shift) <= 1
