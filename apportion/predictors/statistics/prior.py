"""A Beta prior for each prompt, fitted to what has been seen of all prompts."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from apportion.predictors.kernels.regression import LinearFit
from apportion.predictors.statistics.beta_binomial import USUAL_STRENGTH, expit, fit_line, fit_strength, log_odds
from apportion.types import Counts, Floats

EXPLAINED_SHARES = np.array([0.0, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9])
SHARE_PRIOR = np.array([0.5, *[0.5 / 6] * 6])
LEAST_SHARE = 0.01
SAMPLE = 1024
EDGE = 0.01
MEAN_VARIANCE = 0.25
UNIFORM_VARIANCE, UNIFORM_WITHIN = 1 / 12, 2 / 3
"""Under Beta(1, 1), the variance of p, and the share of a verdict's variance that is not between prompts."""
SMALLEST_VARIANCE = 1e-4


class History(NamedTuple):
    """What is known of P prompts. Rewards are in units of their range, so from 0 to 1; verdicts are 0 or 1.

    ``trials`` [P] are discounted numbers of rewards, 0 for a prompt never seen, and ``means`` [P] their discounted
    means. The variance of such a mean is that of one reward times ``spreads`` [P], inf for a prompt never seen.
    ``squares`` [P] are discounted squared deviations from the mean, whose expectation is the variance of one reward
    times ``freedom`` [P]. ``rates`` [P] are known rates, nan where there is none. ``features`` is [P, 1 + f]: 1 for a
    prompt without a known rate and 0 for one with it, and then the features of its embedding.
    """

    trials: Floats
    means: Floats
    spreads: Floats
    squares: Floats
    freedom: Floats
    rates: Floats
    features: NDArray[Any]

    def at(self, rows: Any) -> Self:
        """Return the history of some prompts, by an index into P."""
        return type(self)(*(column[rows] for column in self))

    @property
    def rated(self) -> Counts:
        """1 for a prompt with a known rate, 0 for one without, [P]."""
        return (~np.isnan(self.rates)).astype(np.int64)


@dataclass(frozen=True)
class Prior:
    """A Beta prior for each prompt. Its mean leaves out the prompt's own rewards, which the posterior adds.

    The mean is a base plus a regression on features. The base is a map of the known rate, or else 1/2; the regression
    adds the mean of the prompts without a known rate, and what embeddings say. Its noise is that of a mean of few
    rewards, plus the variance between prompts that the features leave unexplained. The share of the variance between
    prompts that embeddings explain is its posterior mean over ``EXPLAINED_SHARES``. Half of its prior is on 0, where
    embeddings do not matter. Until enough has been seen, variances are those under Beta(1, 1): estimates are made as if
    one more prompt, and one more reward of a prompt, had been drawn from it.

    Args:
        line: the map from known rates, ``fit_line``.
        fit: the regression.
        within: variance of one reward around its prompt's mean.
        left: [2], variance between prompts left unexplained, for those without and with a known rate.
        strengths: [2], how many rewards the prior is worth, for the same.
        dispersion: variance of a reward over that of a verdict of the same mean: 1 for verdicts, less for graded
            rewards. A graded reward counts as 1 / dispersion verdicts (a quasi-likelihood).
        explained: share of the variance between prompts that embeddings explain.
    """

    line: Floats
    fit: LinearFit
    within: float
    left: Floats
    strengths: Floats
    dispersion: float
    explained: float

    @staticmethod
    def of(seen: History, graded: bool = False) -> "Prior":
        """Fit the prior to the prompts ``seen``, maybe none.

        The share explained and the strengths are fitted to at most 1,024 of them, evenly chosen in order of arrival.
        """
        rated, known = seen.rated, seen.rated == 1
        line = fit_line(seen.rates[known], seen.means[known], seen.trials[known])
        centre = (seen.means.sum() + 0.5) / (len(rated) + 1)
        within = float((UNIFORM_WITHIN * centre * (1 - centre) + seen.squares.sum()) / (1 + seen.freedom.sum()))
        base = _base(line, seen.rates)
        levels = np.where(known, base, (seen.means[~known].sum() + 0.5) / ((~known).sum() + 1))
        between = np.array([_between(seen.at(rated == kind), levels[rated == kind], within) for kind in (0, 1)])
        common = float(between[rated].mean()) if len(rated) else UNIFORM_VARIANCE

        def regress(some: History, share: float) -> Prior:
            features = some.features if share else some.features[:, :1]
            variances = np.r_[MEAN_VARIANCE, np.full(features.shape[1] - 1, share * common)]
            left = (1 - share) * between
            residuals, noise = some.means - _base(line, some.rates), within * some.spreads + left[some.rated]
            fit = LinearFit.of(features, residuals, noise, variances)
            return Prior(line, fit, within, left, np.full(2, USUAL_STRENGTH), 1.0, share)

        sample = seen.at(slice(None, None, -(-len(rated) // SAMPLE) or 1))
        share = 0.0
        if sample.features.shape[1] > 1:
            evidence = np.array([regress(sample, share).fit.evidence for share in EXPLAINED_SHARES])
            weights = SHARE_PRIOR * np.exp(evidence - evidence.max())
            share = float(weights @ EXPLAINED_SHARES / weights.sum())
        prior = regress(seen, share if share >= LEAST_SHARE else 0.0)
        dispersion = 1.0
        if graded:
            spread = _between(seen, np.full(len(rated), centre), within)
            dispersion = float(np.clip(within / max(centre * (1 - centre) - spread, SMALLEST_VARIANCE), EDGE, 1.0))
        means, trials = prior.means(sample), sample.trials / dispersion
        kinds = [sample.rated == kind for kind in (0, 1)]
        strengths = [fit_strength(means[kind], (sample.means * trials)[kind], trials[kind]) for kind in kinds]
        return replace(prior, strengths=np.array(strengths), dispersion=dispersion)

    @property
    def unrated(self) -> float:
        """The mean of the prior of a prompt without a known rate and an embedding."""
        return 0.5 + float(self.fit.weights[0])

    def means(self, history: History) -> Floats:
        """Return the mean of each prompt's prior, [P], within [0.01, 0.99]; its own rewards are left out."""
        base, features = _base(self.line, history.rates), history.features[:, : len(self.fit.weights)]
        noise = self.within * history.spreads + self.left[history.rated]
        return np.clip(base + self.fit.leave_one_out(features, history.means - base, noise), EDGE, 1 - EDGE)

    def posterior(self, history: History) -> tuple[Floats, Floats]:
        """Return the mean and the strength of each prompt's posterior, [P] each."""
        strengths, trials = self.strengths[history.rated], history.trials / self.dispersion
        total = strengths + trials
        return (strengths * self.means(history) + trials * history.means) / total, total


def _base(line: Floats, rates: Floats) -> Floats:
    base, known = np.full(len(rates), 0.5), ~np.isnan(rates)
    base[known] = expit(line[0] + line[1] * log_odds(rates[known]))
    return base


def _between(seen: History, levels: Floats, within: float) -> float:
    """Return the variance of true means around ``levels`` [P], as if one more prompt had been drawn uniformly."""
    excess = ((seen.means - levels) ** 2 - within * seen.spreads).sum()
    return max(float(UNIFORM_VARIANCE + excess) / max(len(levels), 1), SMALLEST_VARIANCE)
