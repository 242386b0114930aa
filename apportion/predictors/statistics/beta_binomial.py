"""Fits of a Beta prior to counts: its strength, and the map from known rates to its means."""

import numpy as np

from apportion.types import Floats

STRENGTHS = 2.0 ** np.arange(-4, 10.25, 0.25)
USUAL_STRENGTH = 2.0
LINE = np.array([0.0, 1.0])
LINE_PRECISION = np.array([0.25, 1.0])
EDGE = 0.01


def log_likelihood(mean: Floats, strength: Floats, successes: Floats, trials: Floats) -> Floats:
    """Return log P(successes | trials) under Beta(strength mean, strength (1 - mean)), elementwise.

    The binomial coefficient is left out. Counts may be fractions, such as discounted ones.

    >>> np.exp(log_likelihood(np.array(0.5), np.array(2.0), np.array(1.0), np.array(2.0))).round(4)
    np.float64(0.1667)
    """
    from scipy import special  # noqa: PLC0415 - slow to import

    log_gamma = special.gammaln
    a, b = strength * mean, strength * (1 - mean)
    inside = log_gamma(a + successes) - log_gamma(a) + log_gamma(b + trials - successes) - log_gamma(b)
    return np.asarray(inside - log_gamma(strength + trials) + log_gamma(strength))


def fit_strength(mean: Floats, successes: Floats, trials: Floats) -> float:
    """Return the strength of the prior in rollouts: the most probable of 57 values from 1/16 to 1,024.

    Each prompt has a prior ``mean`` [P] of its own. The strength has a log-normal prior around 2, that of Beta(1, 1),
    whose standard deviation is a factor of e. So it is 2 for no prompts, and many prompts overrule it.
    """
    likelihood = log_likelihood(mean, STRENGTHS[:, None], successes, trials).sum(axis=1)
    return float(STRENGTHS[np.argmax(likelihood - 0.5 * np.log(STRENGTHS / USUAL_STRENGTH) ** 2)])


def fit_line(rates: Floats, shares: Floats, trials: Floats) -> Floats:
    """Return the a and b of logit(p) = a + b logit(rate) that best explain the ``shares`` [P] of successes.

    They maximise the quasi-binomial likelihood, with prompts spread around the line as by Beta(1, 1), and under the
    priors a ~ N(0, 2^2) and b ~ N(1, 1). So the map is the identity for no prompts. b is at least 0: a higher rate
    never predicts a lower success.
    """
    x = np.stack([np.ones(len(rates)), log_odds(rates)], axis=1)
    weights = 1 / (1 / trials + 1 / (USUAL_STRENGTH + 1))

    def objective(line: Floats) -> float:
        latent = x @ line
        fit = weights @ (shares * latent - np.logaddexp(0, latent))
        return float(fit - 0.5 * LINE_PRECISION @ (line - LINE) ** 2)

    line, value = LINE, objective(LINE)
    for _ in range(50):
        p = expit(x @ line)
        slope = x.T @ (weights * (shares - p)) - LINE_PRECISION * (line - LINE)
        curvature = (x.T * (weights * p * (1 - p))) @ x + np.diag(LINE_PRECISION)
        step = np.linalg.solve(curvature, slope)
        while objective(line + step) < value and np.abs(step).max() > 1e-9:
            step = step / 2
        line, value = line + step, objective(line + step)
        if np.abs(step).max() < 1e-6:
            break
    return line if line[1] >= 0 else np.array([line[0], 0.0])


def expit(latent: Floats) -> Floats:
    """Return 1 / (1 + exp(-latent)), elementwise, without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * latent))


def logit(p: Floats) -> Floats:
    """Return log(p / (1 - p)), elementwise, for p strictly between 0 and 1.

    >>> logit(np.array([0.05, 0.5])).round(3).tolist()
    [-2.944, 0.0]
    """
    return np.log(p) - np.log1p(-p)


def log_odds(rates: Floats) -> Floats:
    """Return the logit of each rate, clipped to [0.01, 0.99]."""
    return logit(np.clip(rates, EDGE, 1 - EDGE))
