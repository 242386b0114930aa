"""Distributions of success probabilities: mixtures of Betas, named shapes, and a fit to the first groups of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import scipy
from numpy.random import Generator
from numpy.typing import ArrayLike

from apportion.checks import integer_array, number_array
from apportion.predictors.statistics.beta_binomial import log_likelihood
from apportion.types import ArrayValue, Floats
from apportion.untrusted import shown

SUM_TOLERANCE = 1e-6
BASIS = 8
"""Betas of the basis that a fit weighs, besides one at each end."""
EDGE_STRENGTH = 40.0
"""Strength of the two Betas at the ends: a prompt of mean 1/40 or 39/40."""
FIT_ROUNDS = 500


@dataclass(frozen=True, eq=False, repr=False)
class BetaMixture(ArrayValue):
    """A mixture of K Betas: component k has ``weights[k]`` and is Beta(``alpha[k]``, ``beta[k]``).

    Args:
        weights: share of prompts of each component, [K], at least 0, with sum 1.
        alpha: first parameter of each component, [K], above 0.
        beta: second parameter of each component, [K], above 0.

    Raises ValueError for other values.

    >>> BetaMixture([0.5, 0.5], [1, 9], [9, 1]).mean
    0.5
    """

    weights: Floats
    alpha: Floats
    beta: Floats

    def __post_init__(self) -> None:
        for name in ("weights", "alpha", "beta"):
            values = number_array(name, getattr(self, name)).copy()
            values.flags.writeable = False
            object.__setattr__(self, name, values)
        if not (self.weights.ndim == 1 and self.weights.shape == self.alpha.shape == self.beta.shape):
            raise ValueError(
                f"weights, alpha and beta must be [K] each, got {self.weights.shape}, {self.alpha.shape} and "
                f"{self.beta.shape}; give each component one of each"
            )
        if not (self.weights >= 0).all() or abs(self.weights.sum() - 1) > SUM_TOLERANCE:
            raise ValueError(
                f"weights must be at least 0 with sum 1, got {self.weights.tolist()} with sum {self.weights.sum():g}; "
                "divide them by their sum"
            )
        for name, values in (("alpha", self.alpha), ("beta", self.beta)):
            if not ((values > 0) & np.isfinite(values)).all():
                raise ValueError(f"{name} must be finite and above 0, got {values.tolist()}; 1 and 1 is uniform")

    @classmethod
    def single(cls, mean: float, strength: float) -> Self:
        """Return one Beta with this ``mean`` and alpha + beta = ``strength``; a larger strength is a smaller spread."""
        if not 0 < mean < 1 or not 0 < strength < np.inf:
            raise ValueError(
                f"mean must be between 0 and 1, and strength finite and above 0, got {mean} and {strength}; change them"
            )
        return cls(np.ones(1), np.array([mean * strength]), np.array([(1 - mean) * strength]))

    @property
    def mean(self) -> float:
        """Expected success probability of a prompt."""
        return float(self.weights @ (self.alpha / (self.alpha + self.beta)))

    def draw(self, size: int, generator: Generator) -> Floats:
        """Return ``size`` independent success probabilities."""
        component = generator.choice(len(self.weights), size, p=self.weights / self.weights.sum())
        return generator.beta(self.alpha[component], self.beta[component])

    def cdf(self, p: ArrayLike) -> Floats:
        """Return the share of prompts whose success probability is at most ``p``, elementwise."""
        at = np.asarray(p, np.float64)[..., None]
        return np.asarray(scipy.special.betainc(self.alpha, self.beta, at) @ self.weights)


def fit_mixture(successes: ArrayLike, trials: ArrayLike) -> BetaMixture:
    """Return the mixture that best explains ``successes`` [Q] among ``trials`` [Q] rollouts, by maximum likelihood.

    The components are fixed: Beta(j + 1, 8 - j) for j = 0 ... 7, and one at each end. Only their weights are fitted, by
    EM, so that the likelihood has one maximum. Weights below .0005 are dropped. Raises ValueError without any trial.

    Reference: A. Dempster, N. Laird, D. Rubin, "Maximum Likelihood from Incomplete Data via the EM Algorithm", 1977.
    """
    right, number = integer_array("successes", successes), integer_array("trials", trials)
    if right.shape != number.shape or (right < 0).any() or (right > number).any():
        raise ValueError("successes must be [Q] and from 0 to trials [Q], got others; count the correct rollouts")
    if not number.sum():
        raise ValueError("a mixture is fitted to rollouts, got no rollout with a verdict; choose another run")
    pairs, copies = np.unique(np.stack([right, number]), axis=1, return_counts=True)
    j = np.arange(BASIS)
    alpha = np.r_[1.0, j + 1.0, EDGE_STRENGTH - 1]
    beta = np.r_[EDGE_STRENGTH - 1, BASIS - j.astype(np.float64), 1.0]
    strength = (alpha + beta)[:, None]
    likelihood = np.exp(log_likelihood(alpha[:, None] / strength, strength, *pairs.astype(np.float64)))
    weights = np.ones(len(alpha))
    for _ in range(FIT_ROUNDS):
        share = weights[:, None] * likelihood
        weights = (share / share.sum(axis=0)) @ copies / copies.sum()
    weights = np.where(weights < 5e-4, 0.0, weights)
    kept = weights > 0
    return BetaMixture(weights[kept] / weights.sum(), alpha[kept], beta[kept])


SHAPES: dict[str, BetaMixture] = {
    "like-the-run": BetaMixture(
        np.array([0.3436, 0.0684, 0.1126, 0.1339, 0.0441, 0.0182, 0.0374, 0.186, 0.0558]),
        np.array([1.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]),
        np.array([39.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]),
    ),
    "uniform": BetaMixture.single(0.5, 2.0),
    "easy": BetaMixture.single(0.8, 5.0),
    "hard": BetaMixture.single(0.2, 5.0),
    "bimodal": BetaMixture(np.array([0.5, 0.5]), np.array([1.0, 9.0]), np.array([9.0, 1.0])),
}
"""Named distributions of success probabilities.

``like-the-run`` is ``fit_mixture`` of the first visits of the recorded run ``examples/data/grpo_run.jsonl.gz``. The
later visits of that run did not enter.
"""


def named_shape(name: str) -> BetaMixture:
    """Return the shape ``name`` of ``SHAPES``. Raise ValueError for another name."""
    if name not in SHAPES:
        raise ValueError(f"the population must be one of {', '.join(sorted(SHAPES))}, got {shown(name)}; choose one")
    return SHAPES[name]
