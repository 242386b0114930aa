"""The graded Gaussian process against Appendix E.2 of arXiv 2602.01601 as printed, with its Q x Q kernel."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.predictors import GradedGaussianProcess
from apportion.predictors.gp import inverse_softplus, softplus
from tests.predictors.builders import LatentReference, embedder_of, embeddings, graded_batch, make_prompts


class AppendixE2(LatentReference):
    """Algorithm 1 with the softplus link, literally; observed variances below .05 log 2 count as that."""

    def step(self, b, rewards):
        variances = np.maximum([np.var(group, ddof=1) for group in rewards], 0.05 * math.log(2))
        self.condition(b, np.log(np.exp(variances) - 1))

    @property
    def v(self):
        return np.log(1 + np.exp(self.m))


def draws(rng, size, spread=1.0):
    """Rewards of ``size`` prompts, 2 to 9 each, of any variance; some all equal."""
    sd = spread * rng.choice([0.0, 0.3, 1.0, 2.0], size)
    return [rng.normal(3.0, s, rng.integers(2, 10)) for s in sd]


@given(st.floats(1e-12, 1e3))
def test_the_links_are_inverse_to_each_other_and_the_papers_formula(v):
    g = inverse_softplus(np.array([v]))
    np.testing.assert_allclose(softplus(g), v, rtol=1e-13)
    np.testing.assert_allclose(inverse_softplus(softplus(g)), g, rtol=1e-12, atol=1e-15)
    if v < 700:
        assert g[0] == pytest.approx(math.log(math.expm1(v)), rel=1e-10, abs=1e-12)
    assert inverse_softplus(np.array([1e300])).tolist() == [1e300]
    assert softplus(np.array([1e300, -1e300])).tolist() == [1e300, 0.0]
    assert inverse_softplus(np.array([5e-324]))[0] == pytest.approx(math.log(5e-324))


@pytest.mark.parametrize(("scale", "noise"), [(1.0, 1e-6), (None, 0.1)])
def test_it_is_appendix_e2_of_rewards_over_their_scale_or_their_running_spread(scale, noise):
    x, prompts, rng = embeddings(60, 4), make_prompts(60), np.random.default_rng(2)
    predictor = GradedGaussianProcess(embedder_of(prompts, x), scale=scale, noise=noise, discount=0.5)
    reference, total, number = AppendixE2(x, noise=noise), 0.0, 0.0
    predictor.prepare(prompts)
    np.testing.assert_allclose(predictor.predict(prompts).variance, math.log(2))
    for _ in range(6):
        chosen, rewards = rng.choice(60, 12, replace=False), draws(rng, 12, spread=scale or 0.05)
        total, number = 0.5 * total + sum(np.var(group, ddof=1) for group in rewards), 0.5 * number + 12
        unit = scale or total / number / math.log(2)
        predictor.update(graded_batch([prompts[q] for q in chosen], rewards))
        reference.step(chosen, [group / math.sqrt(unit) for group in rewards])
        np.testing.assert_allclose(predictor.predict(prompts).variance, unit * reference.v, rtol=1e-6)


def test_all_predictions_are_at_the_floor_until_a_variance_is_observed():
    x, prompts = np.arange(3.0)[:, None] * 100, make_prompts(3)
    predictor = GradedGaussianProcess(embedder_of(prompts, x), bandwidth=1.0, discount=1.0)
    predictor.update(graded_batch(prompts[:2], [[0.1, 0.1, 0.1], [1.0, 1.0]]))
    np.testing.assert_allclose(predictor.predict(prompts).variance, np.log(2) * np.array([0.05, 0.05, 1.0]))
    predictor.update(graded_batch(prompts[1:2], [[0.0, 1.2]]))
    np.testing.assert_allclose(predictor.predict(prompts).variance, [0.05 * 0.24, 0.72, 0.24])


def test_equal_embeddings_share_one_latent_and_pool_their_spreads_about_their_own_means():
    prompts = make_prompts(2)
    predictor = GradedGaussianProcess(embedder_of(prompts, [[0.0], [0.0]]))
    predictor.update(graded_batch(prompts, [[0.0, 1.0], [10.0, 10.5, 11.0]]))
    np.testing.assert_allclose(predictor.predict(prompts).variance, (0.5 + 0.5) / (1 + 2))
