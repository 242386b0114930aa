"""Tests of the prior that is fitted to all prompts."""

import numpy as np
import pytest
from hypothesis import given, strategies
from hypothesis.extra.numpy import arrays
from scipy import optimize

from apportion.predictors.statistics.beta_binomial import expit, logit
from apportion.predictors.statistics.prior import MEANS, PRECISIONS, Prior


def seen_prompts(rng, p, trials=8, embeddings=None, rates=None):
    """Return features, mean rewards and numbers of rewards of prompts with success rates ``p``."""
    known = np.full(len(p), float(rates is not None))
    x = np.c_[1 - known, known, 0 * p if rates is None else logit(rates)]
    x = x if embeddings is None else np.c_[x, embeddings]
    return x, rng.binomial(trials, p) / trials, np.full(len(p), float(trials))


def strength(prior):
    return 1 / prior.correlation - 1


UNSEEN = np.array([[1.0, 0.0, 0.0]]), np.zeros(1), np.zeros(1)


def test_no_prompts_give_the_uniform_prior_and_take_a_known_rate_as_it_is():
    prior = Prior.of(np.zeros((0, 3)), np.zeros(0), np.zeros(0))
    assert strength(prior) == pytest.approx(2) and prior.means(*UNSEEN).tolist() == [0.5]
    assert prior.means(np.array([[0.0, 1.0, logit(np.array(0.3))]]), *UNSEEN[1:])[0] == pytest.approx(0.3)


@pytest.mark.parametrize(("alpha", "beta"), [(0.3, 0.7), (9.0, 3.0)])
def test_mean_and_strength_are_those_of_the_population(alpha, beta):
    rng = np.random.default_rng(1)
    prior = Prior.of(*seen_prompts(rng, rng.beta(alpha, beta, 3000), trials=16))
    assert strength(prior) == pytest.approx(alpha + beta, rel=0.25)
    assert prior.means(*UNSEEN)[0] == pytest.approx(alpha / (alpha + beta), abs=0.02)


def test_the_map_of_known_rates_is_that_of_a_general_optimiser():
    rng = np.random.default_rng(2)
    rates = rng.uniform(0.05, 0.95, 300)
    x, r, n = seen_prompts(rng, expit(-1.0 + 0.6 * logit(rates)), rates=rates)
    prior = Prior.of(x, r, n)
    u = prior.at(x, n)[2]

    def lost(w):
        latent = x @ w
        return float(0.5 * PRECISIONS @ (w - MEANS) ** 2 - u @ (r * latent - np.logaddexp(0, latent)))

    np.testing.assert_allclose(prior.weights, optimize.minimize(lost, MEANS, tol=1e-12).x, atol=1e-3)
    np.testing.assert_allclose(prior.weights[1:], [-1.0, 0.6], atol=0.15)


def test_embeddings_count_as_far_as_they_explain_success():
    rng = np.random.default_rng(3)
    z = rng.normal(size=(600, 8)) / 8**0.5
    p = expit(3 * z[:, 0])
    told, shuffled = (Prior.of(*seen_prompts(rng, some, embeddings=z)) for some in (p, rng.permutation(p)))
    assert told.weights[3] == pytest.approx(3, abs=0.5) and strength(told) > 50
    assert np.abs(shuffled.weights[3:]).max() < 0.3


def test_the_mean_of_a_prompt_leaves_its_own_rewards_out():
    """Its prior mean is near that of a prompt like it, never seen, under a fit to all others."""
    rng = np.random.default_rng(4)
    z = rng.normal(size=(60, 3)) / 2
    x, r, n = seen_prompts(rng, np.clip(0.5 + 0.3 * z[:, 0], 0.02, 0.98), embeddings=z)
    prior = Prior.of(x, r, n)
    found, within = prior.means(x, r, n), prior.at(x, n)[0]
    others = []
    for q in range(60):
        rest = np.arange(60) != q
        others.append(Prior.of(x[rest], r[rest], n[rest]).means(x[[q]], *UNSEEN[1:])[0])
    assert np.abs(found - others).max() < 0.03 and np.abs(found - others).mean() < 0.2 * np.abs(within - others).mean()


SHARES = strategies.sampled_from([0.0, 1e-12, 0.3, 0.5, 1.0])
SEEN = strategies.integers(0, 12).flatmap(
    lambda size: strategies.tuples(
        arrays(float, (size, 4), elements=strategies.sampled_from([-10.0, -1.0, 0.0, 0.5, 10.0])),
        arrays(bool, size),
        arrays(float, size, elements=SHARES),
        arrays(float, size, elements=strategies.sampled_from([1.0, 1.9, 80.0, 1e9])),
    )
)


@given(SEEN)
def test_means_lie_within_1_and_99_percent_whatever_was_seen(seen):
    features, rated, r, n = seen
    x = np.c_[~rated, rated, features[:, 0].clip(-4.5, 4.5) * rated, features[:, 1:]]
    prior = Prior.of(x, r, n)
    for trials in (n, np.zeros(len(n))):
        means = prior.means(x, r, trials)
        assert ((means > 0.0099) & (means < 0.9901)).all() and np.isfinite(strength(prior)) and strength(prior) > 0
