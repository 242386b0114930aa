"""Low-rank kernel regression with leave-one-out predictions: Nystrom features, then Bayesian linear regression.

References: C. Williams, M. Seeger, "Using the Nystrom Method to Speed Up Kernel Machines", NeurIPS 2000, for the
features; C. E. Rasmussen, C. Williams, "Gaussian Processes for Machine Learning", 2006, sections 2.1.1 and 5.4.2, for
the regression, its evidence and its leave-one-out predictions.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from apportion.predictors.kernels.rbf import rbf_blocks
from apportion.types import Floats

SMALLEST_EIGENVALUE = 1e-6
BLOCK = 4096
MANY_ROWS = 65_536
"""Rows of a block of predictions, because a table of all of them in float64 could fill the memory."""


@dataclass(frozen=True)
class NystromFeatures:
    """Features whose inner products approximate the RBF kernel: exactly between landmarks, from below elsewhere.

    With a landmark at every data point the regression is that of the full kernel. A point far from all landmarks has
    features near 0. Directions of the landmarks' kernel with an eigenvalue below 1e-6 of the largest are left out.

    Args:
        landmarks: [r, d].
        bandwidth: h of the kernel exp(-|a - b|^2 / (2 h^2)).
        projection: [r, f], f at most r, from kernel values at the landmarks to features.

    >>> features = NystromFeatures.of(np.array([[0.0], [1.0]]), bandwidth=1.0)
    >>> values = features(np.array([[0.0], [1.0]]))
    >>> (values @ values.T).astype(float).round(3).tolist()
    [[1.0, 0.607], [0.607, 1.0]]
    """

    landmarks: NDArray[Any]
    bandwidth: float
    projection: Floats

    @classmethod
    def of(cls, landmarks: NDArray[Any], bandwidth: float) -> Self:
        """Return the features with these ``landmarks`` [r, d], r at least 1."""
        blocks = rbf_blocks(landmarks, np.arange(len(landmarks)), landmarks, bandwidth)
        values, vectors = np.linalg.eigh(np.concatenate([kernel.copy() for _, kernel in blocks]))
        kept = values > SMALLEST_EIGENVALUE * values[-1]
        return cls(landmarks, bandwidth, vectors[:, kept] / np.sqrt(values[kept]))

    def __call__(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """Return the features [P, f] of ``x`` [P, d], in float32 because they are kept for every prompt."""
        features = np.empty((len(x), self.projection.shape[1]), np.float32)
        for some, kernel in rbf_blocks(x, np.arange(len(x)), self.landmarks, self.bandwidth):
            features[some] = kernel @ self.projection
        return features


@dataclass(frozen=True)
class LinearFit:
    """The posterior of w in y = features w + noise, whose weights and noise are normal with known variances.

    Args:
        weights: posterior mean [f] of w.
        covariance: posterior covariance [f, f] of w.
        evidence: log density of y, up to a constant.
    """

    weights: Floats
    covariance: Floats
    evidence: float

    @classmethod
    def of(cls, features: NDArray[Any], y: Floats, noise: Floats, prior: Floats) -> Self:
        """Fit to ``features`` [n, f] and ``y`` [n], n may be 0.

        ``noise`` [n] is the variance of each y around its mean, ``prior`` [f] that of each w; all above 0.
        """
        precision, moment, scale = np.diag(1 / prior), np.zeros(len(prior)), 1 / np.sqrt(noise)
        for start in range(0, len(y), BLOCK):
            some = slice(start, start + BLOCK)
            whitened = features[some] * scale[some, None]
            precision += whitened.T @ whitened
            moment += whitened.T @ (y[some] * scale[some])
        covariance = np.asarray(np.linalg.inv(precision), np.float64)
        weights = covariance @ moment
        volume = np.linalg.slogdet(precision)[1] + np.log(prior).sum() + np.log(noise).sum()
        evidence = -0.5 * (float((y * y / noise).sum()) - float(moment @ weights) + float(volume))
        return cls(weights, covariance, evidence)

    def leave_one_out(self, features: NDArray[Any], y: Floats, noise: Floats) -> Floats:
        """Return the mean that a fit to all other rows predicts for each row, [P].

        Rows with finite ``noise`` must be among those fitted. A row with infinite noise was not fitted; its prediction
        is the mean, and its ``y`` does not matter.
        """
        found = np.asarray(features @ self.weights)
        fitted = np.flatnonzero(np.isfinite(noise))
        for start in range(0, len(fitted), MANY_ROWS):
            some = fitted[start : start + MANY_ROWS]
            x = features[some]
            leverage = np.einsum("pf,pf->p", x @ self.covariance, x) / noise[some]
            found[some] = (found[some] - leverage * y[some]) / (1 - leverage)
        return found
