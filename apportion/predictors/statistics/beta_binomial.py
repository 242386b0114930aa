"""The likelihood of counts under a Beta, and log-odds."""

import numpy as np

from apportion.types import Floats

LARGEST_LOGIT = 36.0


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
    """Return 1 / (1 + exp(-latent)), elementwise; ``latent`` is clipped to +-36, so never exactly 0 or 1."""
    return 1 / (1 + np.exp(-np.clip(latent, -LARGEST_LOGIT, LARGEST_LOGIT)))


def logit(p: Floats) -> Floats:
    """Return log(p / (1 - p)), elementwise, for p strictly between 0 and 1.

    >>> logit(np.array([0.05, 0.5])).round(3).tolist()
    [-2.944, 0.0]
    """
    return np.log(p) - np.log1p(-p)
