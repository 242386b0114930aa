"""Tests of the common shift of log-odds, and of batches in which nothing was verified."""

import numpy as np
import pytest
from hypothesis import given, strategies
from hypothesis.extra.numpy import arrays

from apportion.predictors.statistics.beta_binomial import log_odds
from apportion.predictors.statistics.drift import LARGEST_MOVE, LARGEST_STEP, Drift, Returns, moved


def returns(means, shares, *, strength=80.0, trials=8.0, own=None):
    """Return prompts whose own mean is the belief's mean, of 80 rollouts, unless it is given."""
    means, shares = np.atleast_1d(means).astype(float), np.atleast_1d(shares).astype(float)
    size = np.ones(len(means))
    own = means if own is None else np.asarray(own, float)
    return Returns(means, strength * size, own, size / strength, shares * size, trials * size)


@pytest.mark.parametrize("pace", [0.0, 0.1])
@pytest.mark.parametrize("size", [2, 200])
def test_the_steps_follow_a_population_of_this_pace(pace, size):
    rng, drift = np.random.default_rng(0), Drift()
    p = rng.beta(2, 2, 200)
    believed = p.copy()
    for _ in range(60):
        p = moved(p, pace)
        for some in np.array_split(rng.permutation(200), 200 // size):
            shares = rng.binomial(8, p[some]) / 8
            believed = moved(believed, drift.observe(returns(believed[some], shares))[0])
    assert (log_odds(believed) - log_odds(p)).mean() == pytest.approx(0, abs=0.2)


def test_fewer_than_16_prompts_show_no_step_and_wait_for_others():
    drift = Drift()
    assert [drift.observe(returns(0.5, 0.9))[0] for _ in range(15)] == [0.0] * 15
    assert drift.observe(returns(0.5, 0.9))[0] > 1.0
    assert len(drift.window) == 0


def test_prompts_that_all_beliefs_pull_to_the_mean_show_no_step():
    """Easy prompts only: the belief of each is too low by .1, as always when a prior counts."""
    assert Drift().observe(returns([0.8] * 64, 0.9, own=[0.9] * 64))[0] == 0.0


def test_prompts_that_are_nearly_certain_show_no_step():
    assert Drift().observe(returns([1e-9, 1 - 1e-9] * 32, [0.0, 1.0] * 32)) == (0.0, True)


def test_a_dead_batch_moves_nothing_until_the_next_confirms_it_and_the_end_takes_all_back():
    drift, dead = Drift(), returns([0.5] * 8, 0.0)
    found = [drift.observe(dead, -1) for _ in range(5)]
    assert found == [(0.0, False), (-0.5, False), (-1.0, False), (-2.0, True), (-2.0, True)]
    assert drift.observe(returns([0.5] * 8, 0.5)) == (5.5, True)
    assert drift.observe(returns([0.5] * 8, 0.5)) == (0.0, True)


def test_an_outage_of_the_other_kind_ends_one():
    drift = Drift()
    drift.observe(returns([0.5] * 8, 0.0), -1)
    drift.observe(returns([0.5] * 8, 0.0), -1)
    assert drift.observe(returns([0.4] * 8, 1.0), 1) == (0.0, False)
    assert (drift.outage, drift.observe(returns([0.4] * 8, 1.0), 1)) == (1.0, (0.5, False))


@pytest.mark.parametrize(("mean", "size"), [(0.02, 20), (0.5, 3)])
def test_a_batch_whose_prompts_may_all_fail_is_not_dead(mean, size):
    assert Drift().observe(returns([mean] * size, 0.0), -1)[1]


RATES = strategies.sampled_from([0.0, 1e-12, 0.01, 0.3, 0.5, 0.99, 1.0])
BATCHES = strategies.integers(0, 20).flatmap(
    lambda size: strategies.tuples(
        *[arrays(float, size, elements=RATES)] * 3,
        arrays(float, size, elements=strategies.sampled_from([0.01, 1.0, 8.0, 1e6])),
        strategies.sampled_from([-1, 0, 0, 1]),
    )
)


@given(strategies.lists(BATCHES, max_size=6))
def test_no_batch_of_any_size_and_content_moves_more_than_it_may(batches):
    drift = Drift()
    for means, own, shares, trials, dead in batches:
        before, fallen = drift.outage, drift.fallen
        shift, _ = drift.observe(Returns(means, trials, own, 1 / trials, shares, trials), dead)
        assert abs(shift) <= LARGEST_STEP or (before and drift.fallen == 0 and shift == -fallen)
        assert abs(drift.fallen) <= LARGEST_MOVE and np.isfinite([drift.excess, drift.batches]).all()
