"""The likelihood of counts under a Beta, and log-odds."""

import numpy as np

from apportion.types import Floats


def log_likelihood(mean: Floats, strength: Floats, successes: Floats, trials: Floats) -> Floats:
    """Return log P(successes | trials) under Beta(strength mean, strength (1 - mean)), elementwise.

    The binomial coefficient is left out. Counts may be fractions, such as discounted ones.

    >>> np.exp(log_likelihood(np.array(0.5), np.array(2.0), np.array(1.0), np.array(2.0))).round(4)
    np.float64(0.1667)
    """
    from scipy.special import betaln  # noqa: PLC0415 - slow to import

    a, b = strength * mean, strength * (1 - mean)
    return np.asarray(betaln(a + successes, b + trials - successes) - betaln(a, b))


def expit(latent: Floats) -> Floats:
    """Return 1 / (1 + exp(-latent)), elementwise, for any latent; exactly 0 and 1 beyond about +-37.

    >>> expit(np.array([-800.0, 0.0, 800.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    return 0.5 * (1 + np.tanh(0.5 * latent))


def logit(p: Floats) -> Floats:
    """Return log(p / (1 - p)), elementwise, for p strictly between 0 and 1.

    >>> logit(np.array([0.05, 0.5])).round(3).tolist()
    [-2.944, 0.0]
    """
    return np.log(p) - np.log1p(-p)
