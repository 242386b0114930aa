"""Tests of the prior that is fitted to all prompts."""

import numpy as np
import pytest

from apportion.predictors.statistics.prior import History, Prior


def seen_prompts(rng, means, trials=8.0, features=None, rates=None):
    count = len(means)
    right = rng.binomial(int(trials), means)
    n = np.full(count, trials)
    features = np.empty((count, 0)) if features is None else features
    rates = np.full(count, np.nan) if rates is None else rates
    return History(
        n, right / n, 1 / n, right * (n - right) / n, n - 1, rates, np.c_[np.isnan(rates), features].astype(np.float64)
    )


UNSEEN = History(*np.array([[0.0], [0.0], [np.inf], [0.0], [0.0], [np.nan]]), np.ones((1, 1)))
"""One prompt without rollouts, rate and embedding."""


def test_no_prompts_give_the_uniform_prior():
    seen = seen_prompts(np.random.default_rng(0), np.zeros(0))
    prior = Prior.of(seen)
    assert prior.strengths.tolist() == [2.0, 2.0] and prior.line.tolist() == [0.0, 1.0]
    assert prior.means(UNSEEN).tolist() == [0.5]


@pytest.mark.parametrize(("alpha", "beta"), [(0.3, 0.7), (9.0, 3.0)])
def test_mean_and_strength_are_those_of_the_population(alpha, beta):
    rng = np.random.default_rng(1)
    prior = Prior.of(seen_prompts(rng, rng.beta(alpha, beta, 3000), trials=16.0))
    assert prior.strengths[0] == pytest.approx(alpha + beta, rel=0.25)
    assert prior.means(UNSEEN)[0] == pytest.approx(alpha / (alpha + beta), abs=0.02)
    assert prior.within == pytest.approx(alpha * beta / (alpha + beta) / (alpha + beta + 1), rel=0.1)


def test_embeddings_explain_the_share_that_they_do():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(1000, 4)) / 2
    told = 0.5 + 0.2 * x[:, 0] + 0.2 * x[:, 1]
    p = np.clip(told + 0.1 * rng.normal(size=1000), 0.02, 0.98)
    share = Prior.of(seen_prompts(rng, p, features=x)).explained
    assert share == pytest.approx(told.var() / p.var(), abs=0.1)
    assert Prior.of(seen_prompts(rng, rng.permutation(p), features=x)).explained < 0.02


def test_the_mean_of_a_prompt_leaves_its_own_rewards_out():
    """Its prior mean is that of a prompt like it, never seen, under a fit to all others."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(60, 3)) / 2
    seen = seen_prompts(rng, np.clip(0.5 + 0.3 * x[:, 0], 0.02, 0.98), features=x)
    prior = Prior.of(seen)
    assert prior.explained > 0
    noise = prior.within * seen.spreads + prior.left[0]
    share = prior.explained
    variances = np.r_[0.25, np.full(3, share * prior.left[0] / (1 - share))]
    for q in (0, 17, 59):
        others = np.arange(60) != q
        f = seen.features[others]
        gram = f * variances @ f.T + np.diag(noise[others])
        expected = 0.5 + (seen.features[q] * variances) @ f.T @ np.linalg.solve(gram, seen.means[others] - 0.5)
        assert prior.means(seen.at([q]))[0] == pytest.approx(np.clip(expected, 0.01, 0.99), abs=1e-9)


def test_graded_rewards_have_less_dispersion_than_verdicts():
    rng = np.random.default_rng(5)
    level = rng.random(500)
    rewards = np.clip(level[:, None] + 0.1 * rng.normal(size=(500, 4)), 0, 1)
    means, n = rewards.mean(axis=1), np.full(500, 4.0)
    squares = ((rewards - means[:, None]) ** 2).sum(axis=1)
    seen = History(n, means, 1 / n, squares, n - 1, np.full(500, np.nan), np.ones((500, 1)))
    p_spread = (level * (1 - level)).mean()
    assert Prior.of(seen, graded=True).dispersion == pytest.approx(0.01 / p_spread, rel=0.2)
    assert Prior.of(seen, graded=False).dispersion == 1.0
