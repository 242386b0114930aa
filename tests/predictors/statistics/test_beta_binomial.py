"""The Beta-binomial likelihood, against integration."""

import numpy as np
import pytest
from scipy import integrate, stats

from apportion.predictors.statistics.beta_binomial import log_likelihood


@pytest.mark.parametrize(
    ("mean", "strength", "right", "trials"), [(0.3, 1.5, 2, 8), (0.9, 40.0, 8, 8), (0.5, 2.0, 1.7, 3.9)]
)
def test_the_likelihood_is_the_integral_over_p(mean, strength, right, trials):
    prior = stats.beta(strength * mean, strength * (1 - mean))
    integral, _ = integrate.quad(lambda p: p**right * (1 - p) ** (trials - right) * prior.pdf(p), 0, 1)
    found = np.exp(log_likelihood(np.array(mean), np.array(strength), np.array(right), np.array(trials)))
    assert found == pytest.approx(integral, rel=1e-5)
