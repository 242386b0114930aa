"""Tests of the common shift of log-odds."""

import numpy as np
import pytest

from apportion.predictors.statistics.beta_binomial import expit, log_odds
from apportion.predictors.statistics.drift import Drift, moved


def test_moved_probabilities_have_shifted_log_odds():
    p = np.array([0.02, 0.3, 0.9])
    np.testing.assert_allclose(moved(p, 0.7), expit(log_odds(p) + 0.7))
    assert moved(np.array([0.0, 1.0]), -50.0).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("pace", [0.0, 0.1, -0.1])
def test_the_steps_follow_a_population_of_this_pace(pace):
    rng, drift = np.random.default_rng(0), Drift()
    p = rng.beta(2, 2, 200)
    believed = p.copy()
    for _ in range(60):
        p = moved(p, pace)
        shares = rng.binomial(8, p) / 8
        believed = moved(believed, drift.observe(believed, np.full(200, 80.0), shares, np.full(200, 8.0)))
    assert (log_odds(believed) - log_odds(p)).mean() == pytest.approx(0, abs=0.15)


def test_one_prompt_shows_no_common_step():
    drift = Drift()
    for share in (1.0, 0.0, 1.0):
        assert drift.observe(np.array([0.5]), np.array([10.0]), np.array([share]), np.array([8.0])) == 0.0


def test_prompts_that_are_certain_carry_no_information():
    assert Drift().observe(np.array([0.0, 1.0]), np.full(2, 9.0), np.array([0.0, 1.0]), np.full(2, 8.0)) == 0.0
