"""Tests of the Beta-binomial fits, against integration, brute force and simulation."""

import numpy as np
import pytest
from scipy import integrate, optimize, stats

from apportion.predictors.statistics.beta_binomial import (
    STRENGTHS,
    expit,
    fit_line,
    fit_strength,
    log_likelihood,
    log_odds,
)


@pytest.mark.parametrize(
    ("mean", "strength", "right", "trials"), [(0.3, 1.5, 2, 8), (0.9, 40.0, 8, 8), (0.5, 2.0, 1.7, 3.9)]
)
def test_the_likelihood_is_the_integral_over_p(mean, strength, right, trials):
    prior = stats.beta(strength * mean, strength * (1 - mean))
    integral, _ = integrate.quad(lambda p: p**right * (1 - p) ** (trials - right) * prior.pdf(p), 0, 1)
    found = np.exp(log_likelihood(np.array(mean), np.array(strength), np.array(right), np.array(trials)))
    assert found == pytest.approx(integral, rel=1e-5)


def test_the_strength_is_that_of_a_brute_force_search():
    rng = np.random.default_rng(0)
    mean = rng.uniform(0.1, 0.9, 300)
    trials = rng.integers(1, 20, 300)
    right = rng.binomial(trials, rng.beta(5 * mean, 5 * (1 - mean)))

    def lost(log_strength):
        k = np.exp(log_strength)
        likelihood = stats.betabinom(trials, k * mean, k * (1 - mean)).logpmf(right).sum()
        return float(0.5 * (log_strength - np.log(2)) ** 2 - likelihood)

    best = optimize.minimize_scalar(lost, bounds=(np.log(1 / 16), np.log(1024)), method="bounded").x
    found = fit_strength(mean, right, trials)
    assert abs(np.log(found) - best) <= np.log(STRENGTHS[1] / STRENGTHS[0]) and found == pytest.approx(5, rel=0.4)


def test_the_line_is_that_of_a_general_optimiser():
    rng = np.random.default_rng(1)
    rates, trials = rng.random(200), rng.integers(1, 9, 200)
    shares = rng.binomial(trials, expit(-1.0 + 0.6 * log_odds(rates))) / trials
    x, weights = log_odds(rates), 1 / (1 / trials + 1 / 3)

    def lost(line):
        latent = line[0] + line[1] * x
        prior = 0.125 * line[0] ** 2 + 0.5 * (line[1] - 1) ** 2
        return float(prior - weights @ (shares * latent - np.logaddexp(0, latent)))

    found = fit_line(rates, shares, trials)
    np.testing.assert_allclose(found, optimize.minimize(lost, [0.0, 1.0], tol=1e-10).x, atol=1e-4)
    np.testing.assert_allclose(found, [-1.0, 0.6], atol=0.25)


def test_the_line_never_falls():
    rates = np.linspace(0.05, 0.95, 100)
    assert fit_line(rates, 1 - rates, np.full(100, 64.0))[1] == 0.0


def test_rates_of_all_zero_and_all_one_have_a_line():
    for rate, share in ((0.0, 1.0), (1.0, 0.0), (0.0, 0.0)):
        assert np.isfinite(fit_line(np.full(50, rate), np.full(50, share), np.full(50, 80.0))).all()
