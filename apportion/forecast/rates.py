"""The distribution of success rates over all prompts, without a shape, from a few rollouts of a sample of prompts.

Symbols: w_g the share of prompts with success rate p_g of a grid [G] that holds 0 and 1, and c of C the patterns (k of
n rollouts right) that came, with n_c prompts each. The likelihood is the product over c of

    (sum_g w_g p_g^k (1 - p_g)^(n - k)) ^ n_c.

Maximum likelihood leaves w open wherever n rollouts cannot tell: rates near 0 and 1, and every share of dead groups
beyond n. So there are many fits, each the w that maximises

    sum_c m_c log (sum_g w_g p_g^k (1 - p_g)^(n - k)) + sum_g a_g log w_g.

m is n resampled by the Bayesian bootstrap, which is what chance did. a is a guess of three prompts in all, drawn anew
for each fit, by which the fits differ where the sample says nothing. The spread of the fits has both. It is a posterior
bootstrap under a Dirichlet process whose base has a tenth of its mass at 0, a tenth at 1, and Jeffreys' prior between.
These numbers were chosen on random mixtures of Betas with and without atoms: benchmarks/forecast.py.

References: N. Laird, "Nonparametric Maximum Likelihood Estimation of a Mixing Distribution", JASA 73 (1978); D. Rubin,
"The Bayesian Bootstrap", Annals of Statistics 9 (1981); S. Lyddon, S. Walker, C. Holmes, "Nonparametric Learning from
Bayesian Models with Randomized Objective Functions", NeurIPS 2018; R. Koenker and I. Mizera, "Convex Optimization,
Shape Constraints, Compound Decisions, and Empirical Bayes Rules", JASA 109 (2014), for the interior point.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike

from apportion.checks import integer_array
from apportion.predictors.statistics.beta_binomial import expit
from apportion.types import Counts, Floats

RATES: Floats = np.r_[0.0, expit(np.linspace(-6, 6, 60)), 1.0]
"""The grid of success rates, [G]."""
ATOM = 0.1
GUESS, CHOICES = 3.0, 6.0
"""GUESS: weight of a guess, in prompts. CHOICES: how many prompts each guess resembles; with fewer, guesses differ
more."""
FITS = 200
MOST_TRIALS = 64
"""Most rollouts that count for one prompt, drawn at random. They suffice for the share of dead groups of 32."""
MOST_PATTERNS = 256
LADDER = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, MOST_TRIALS])
"""Numbers of rollouts to thin to, if too many patterns would make the fit take more than seconds."""
LEVEL = 0.92
"""Level of the quantiles. Bootstrap quantiles at 90% cover about two points less, so the level is higher."""

STEPS, CLOSE, SMALLEST, BLOCK = 80, 1e-10, 1e-9, 2**22


def _base() -> Floats:
    inner = np.sqrt(RATES[1:-1] * (1 - RATES[1:-1]))
    return np.asarray(np.r_[ATOM, (1 - 2 * ATOM) * inner / inner.sum(), ATOM])


@dataclass(frozen=True, eq=False)
class RateSample:
    """C patterns of outcomes: ``prompts`` prompts had ``successes`` of ``trials`` rollouts right, [C] each."""

    successes: Counts
    trials: Counts
    prompts: Counts | Floats

    @classmethod
    def of(cls, successes: ArrayLike, trials: ArrayLike) -> RateSample:
        """Return the sample of prompts with ``successes`` [P] of ``trials`` [P]. Prompts without rollouts are left out.

        Raises ValueError without any rollout, and for successes that are not from 0 to ``trials``.

        >>> RateSample.of([0, 0, 2], [4, 4, 4]).prompts.tolist()
        [2, 1]
        """
        right, number = np.broadcast_arrays(integer_array("successes", successes), integer_array("trials", trials))
        if right.ndim != 1 or (right < 0).any() or (right > number).any():
            raise ValueError("successes must be [P] and from 0 to trials [P], got others; count the correct rollouts")
        if not number.any():
            raise ValueError("a forecast needs rollouts with a verdict, got none; choose another sample")
        found = cls._drawn(right[number > 0], number[number > 0], np.arange(1, MOST_TRIALS + 1))
        if len(found.prompts) > MOST_PATTERNS:
            found = cls._drawn(right[number > 0], number[number > 0], LADDER)
        return found

    @classmethod
    def _drawn(cls, right: Counts, number: Counts, allowed: Counts) -> RateSample:
        """Return the sample with at most ``allowed`` rollouts of each prompt, drawn at random."""
        size = allowed[np.searchsorted(allowed, number, side="right") - 1]
        fewer = size < number
        drawn, rng = right.copy(), np.random.default_rng(0)
        drawn[fewer] = rng.hypergeometric(right[fewer], (number - right)[fewer], size[fewer])
        code, prompts = np.unique(size * (MOST_TRIALS + 1) + drawn, return_counts=True)
        return cls(code % (MOST_TRIALS + 1), code // (MOST_TRIALS + 1), prompts)

    def alike(self, n: int) -> tuple[float, float] | None:
        """Return the unbiased shares of groups of ``n`` that are all right, and all wrong, counted in this sample.

        None if the prompts have unequal numbers of rollouts, or fewer than ``n``.
        """
        if n > self.trials.min() or self.trials.min() < self.trials.max():
            return None
        drawn, number = np.arange(n), self.trials[:, None]
        every = (
            np.prod(np.maximum(count[:, None] - drawn, 0) / (number - drawn), axis=1)
            for count in (self.successes, self.trials - self.successes)
        )
        right, wrong = (float(self.prompts @ each / self.prompts.sum()) for each in every)
        return right, wrong


def likelihoods(successes: Counts, trials: Counts) -> Floats:
    """Return the likelihood of each pattern at each rate of the grid, [C, G], over the pattern's largest."""
    k, m = successes[:, None], (trials - successes)[:, None]
    logs = np.log(np.maximum(RATES, 1e-300)), np.log(np.maximum(1 - RATES, 1e-300))
    found = k * logs[0] + m * logs[1]
    return np.exp(found - found.max(axis=1, keepdims=True))


def fit_rates(sample: RateSample, fits: int = FITS, seed: int = 0) -> Floats:
    """Return so many ``fits`` of the shares of prompts at each rate of the grid, [F, G]. Their mean is the estimate.

    >>> fitted = fit_rates(RateSample.of([0] * 50 + [4] * 50, [4] * 100))
    >>> fitted.shape, (fitted @ RATES).mean().round(1)
    ((200, 62), np.float64(0.5))
    """
    rng, likelihood = np.random.default_rng(seed), likelihoods(sample.successes, sample.trials)
    most = max(1, BLOCK // likelihood.size)
    sizes = [min(most, fits - start) for start in range(0, fits, most)]
    return np.concatenate([_fitted(sample.prompts, likelihood, size, rng) for size in sizes])


def _fitted(prompts: Counts | Floats, likelihood: Floats, fits: int, rng: Generator) -> Floats:
    drawn = rng.gamma(prompts, size=(fits, len(prompts)))
    counts = drawn / drawn.sum(axis=1, keepdims=True)
    guess = GUESS / CHOICES * rng.gamma(CHOICES * _base(), size=(fits, len(RATES)))
    return maximise(likelihood, counts, np.maximum(guess / prompts.sum(), SMALLEST))


def maximise(likelihood: Floats, counts: Floats, guess: Floats) -> Floats:
    """Return the w [F, G] that maximise sum ``counts`` [F, C] log(``likelihood`` [C, G] w) + sum ``guess`` log w.

    The slack s of w >= 0 fulfils w s = guess at the maximum, which a primal-dual interior point follows from afar.
    """
    total = (counts.sum(axis=1) + guess.sum(axis=1))[:, None]
    w = np.full(guess.shape, 1 / guess.shape[1])
    s, centre = np.repeat(total, guess.shape[1], axis=1), total / guess.shape[1]
    for _ in range(STEPS):
        mixed = w @ likelihood.T
        gradient = total - (counts / mixed) @ likelihood - s
        product = w * s - guess - centre
        scale = w / s
        rows = (np.sqrt(counts) / mixed)[:, :, None] * likelihood
        wide = rows * scale[:, None]
        target = -gradient - product / w
        small = np.eye(len(likelihood)) + wide @ rows.transpose(0, 2, 1)
        solved = np.linalg.solve(small, wide @ target[:, :, None])
        dw = scale * (target - (rows.transpose(0, 2, 1) @ solved)[:, :, 0])
        ds = -(product + s * dw) / w
        lengths = [
            np.minimum(1, 0.95 / np.maximum(-d / at, 1e-12).max(axis=1))[:, None] for d, at in ((dw, w), (ds, s))
        ]
        w, s = w + lengths[0] * dw, s + lengths[1] * ds
        centre = centre * np.where(np.minimum(*lengths) > 0.3, 0.2, 0.6)
        if centre.max() < CLOSE and np.abs(gradient).max() < 1e-7:
            break
    return np.asarray(w / w.sum(axis=1, keepdims=True))
