"""A Beta prior for each prompt, by a logistic regression over the prompts that have been seen.

Prompt q has r_q, the mean of n_q rewards in [0, 1], and features x_q. Its prior is Beta(k m_q, k (1 - m_q)), with

    logit m_q = w . x_q,    w ~ N(w_0, diag(1 / lambda)),    var r_q = m_q (1 - m_q) [(1 - rho) phi / n_q + rho].

rho = 1 / (k + 1) is the correlation of two rewards of one prompt, and phi the variance of a reward over that of a
verdict of the same mean: 1 for verdicts, less for graded rewards. The regression is a quasi-likelihood, fitted by
Newton's method. Between two steps rho is set by its moments,

    rho = sum u_q [(r_q - m_q)^2 - m_q (1 - m_q) phi / n_q] / sum u_q m_q (1 - m_q) (1 - phi / n_q),

with weights u_q = 1 / [(1 - rho) phi / n_q + rho], as if one more prompt had been drawn from Beta(1, 1). lambda of the
embedding's features is set to (f - sum_j lambda cov(w)_jj) / |w|^2 over these f features. m_q leaves out the prompt's
own rewards, which the posterior adds. By one Newton step, w . x_q becomes w . x_q - h (r_q - m_q) / [(1 - h) m_q
(1 - m_q)], where h is the leverage of prompt q.

References: R. W. M. Wedderburn, "Quasi-likelihood functions", 1974; D. A. Williams, "Extra-binomial variation in
logistic linear models", 1982, for rho; D. J. C. MacKay, "Bayesian interpolation", 1992, for lambda; D. Pregibon,
"Logistic regression diagnostics", 1981, for the step that leaves a prompt out.
"""

from typing import NamedTuple, Self

import numpy as np

from apportion.predictors.statistics.beta_binomial import expit, logit
from apportion.types import Floats

EDGE = 0.01
FURTHEST = float(logit(np.array(1 - EDGE)))
"""The log-odds of 0.99. Means are within [0.01, 0.99]."""
KNOWN = 3
"""The number of features besides those of an embedding: 1 without a known rate, 1 with one, and its log-odds."""
MEANS, PRECISIONS = np.array([0.0, 0.0, 1.0]), np.array([0.25, 0.25, 1.0])
"""Prior means w_0 and precisions lambda of these three features: a known rate counts fully until rewards arrive."""
UNIFORM = 1 / 3
"""The correlation rho of Beta(1, 1), whose k is 2."""
STEPS, LARGEST_STEP, SMALLEST_STEP = 12, 2.0, 1e-3
LEAST_CORRELATION, MOST_CORRELATION = 1e-3, 0.95
LEAST_PRECISION, MOST_PRECISION = 0.01, 1e4
MOST_LEVERAGE = 0.99


class Prior(NamedTuple):
    """The regression's ``weights`` w [3 + f], their ``covariance``, and the ``correlation`` rho.

    P prompts are given by features ``x`` [P, 3 + f], mean rewards ``r`` [P] and their numbers ``n`` [P], divided by phi
    and 0 for a prompt never seen.
    """

    weights: Floats
    covariance: Floats
    correlation: float

    @classmethod
    def of(cls, x: Floats, r: Floats, n: Floats) -> Self:
        """Fit the prior to prompts that were seen, maybe none."""
        f = x.shape[1] - KNOWN
        start, precisions = np.r_[MEANS, np.zeros(f)], np.r_[PRECISIONS, np.ones(f)]
        prior = cls(start, np.diag(1 / precisions), UNIFORM)
        for _ in range(STEPS):
            m, v, u = prior.at(x, n)
            covariance = np.linalg.inv((x.T * (u * v)) @ x + np.diag(precisions))
            step = covariance @ (x.T @ (u * (r - m)) - precisions * (prior.weights - start))
            longest = float(np.abs(x @ step).max(initial=0.0))
            weights = prior.weights + step / max(1.0, longest / LARGEST_STEP)
            m = cls(weights, covariance, prior.correlation).means(x, r, n)
            v = m * (1 - m)
            over, under = u @ ((r - m) ** 2 - v / n) + UNIFORM / 4, u @ (v * (1 - 1 / n)) + 1 / 4
            prior = cls(weights, covariance, float(np.clip(over / under, LEAST_CORRELATION, MOST_CORRELATION)))
            if longest < SMALLEST_STEP:
                break
            own, freedom = weights[KNOWN:], f - (precisions * covariance.diagonal())[KNOWN:].sum()
            precisions[KNOWN:] = np.clip(freedom / max(own @ own, 1 / MOST_PRECISION), LEAST_PRECISION, MOST_PRECISION)
        return prior

    def at(self, x: Floats, n: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the regression's mean m, m (1 - m) and the weight u of each prompt, [P] each."""
        m = expit(np.clip(x @ self.weights, -FURTHEST, FURTHEST))
        return m, m * (1 - m), n / (1 - self.correlation + self.correlation * n)

    def means(self, x: Floats, r: Floats, n: Floats) -> Floats:
        """Return the prior mean of each prompt, [P], within [0.01, 0.99], without the prompt's own rewards."""
        m, v, u = self.at(x, n)
        h = np.minimum(u * v * (x @ self.covariance * x).sum(1), MOST_LEVERAGE)
        return expit(np.clip(logit(m) - h * (r - m) / ((1 - h) * v), -FURTHEST, FURTHEST))
