"""Sequential probability ratio tests between the leader and the runner-up, as ConSol runs them.

Of the v_1 + v_2 votes for the two leading answers, each is for the leader with probability p. H0: p = 1/2, the two are
alike. H1: p = p1 for the SPRT; for the mixture SPRT p comes from a Beta prior truncated to (1/2, 1). Sampling stops
when the likelihood ratio of H1 to H0 leaves Wald's boundaries (Section 2):

    Lambda >= A = (1 - beta) / alpha   accepts H1,        Lambda <= B = beta / (1 - alpha)   accepts H0.

The answer is the leader either way.

Reference: Lee et al. 2025, "ConSol", arXiv 2503.17587, and the package consol 0.3.0, whose defaults these are. Notes:

- The leader is the leader because it got more votes, so the test looks at p after choosing its side: alpha is not an
  error rate here, and the authors calibrate beta so that the rule does well.
- beta just below 1 - alpha puts A just above 1: 1.0005 for the SPRT, 1.0012 for the mSPRT. *Both defaults stop when
  the leader is three votes ahead*, until the runner-up has about a thousand votes. H0 is accepted at ties, of 632 votes
  each or more (SPRT) or 127 (mSPRT), so never within 64 samples.
- The package evaluates the mixture with betaln at shapes of a million and log(1 - I). Here the ratio of Beta functions
  is a product of v_1 + v_2 factors near 1, added up in logarithms, and what is subtracted from 1 is at most 1/2.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy import special

from apportion.stopping.base import CountRule, first_true, top_two
from apportion.stopping.wald import check_error_budgets, log_boundaries
from apportion.types import Counts, Floats, Mask


class LikelihoodRatioTest(CountRule):
    """A test whose likelihood ratio rises with the leader's votes, and falls with the runner-up's and with ties."""

    alpha: float
    beta: float

    @abstractmethod
    def log_likelihood_ratio(self, first: Counts, second: Counts) -> Floats:
        """log Lambda, [...], from the votes of the leader and of the runner-up, [...] each."""

    def enough(self, votes: Counts, samples: Counts, max_samples: int) -> Mask:
        """Whether either hypothesis is accepted."""
        return self._decided(*top_two(votes))

    def earliest(self, votes: Counts, max_samples: int) -> Counts:
        """The sooner of all for the leader (H1), and of the runner-up drawing level and both keeping so (H0)."""
        first, second = (v[..., None] for v in top_two(votes[..., -1:, :].sum(axis=-2)))
        more = np.arange(1, max_samples - votes.shape[-2] + 1)
        total = first + second + more
        level = np.minimum(second + more, total // 2)
        for_leader = self._decided(first + more, np.broadcast_to(second, total.shape))
        return first_true(for_leader | self._decided(total - level, level))

    def _decided(self, first: Counts, second: Counts) -> Mask:
        ratio = self.log_likelihood_ratio(first, second)
        lower, upper = log_boundaries(self.alpha, self.beta)
        decided: Mask = (ratio >= upper) | (ratio <= lower)
        return decided


@dataclass(frozen=True)
class SPRT(LikelihoodRatioTest):
    """Wald's test of p = 1/2 against p = ``p1``.

    >>> from apportion.stopping import decide
    >>> decide(["42", "41", "42", "42", "42", "41"] * 10, rule="sprt").samples
    5
    """

    p1: float = 0.5001
    alpha: float = 0.05
    beta: float = 0.949976

    name: ClassVar[str] = "sprt"

    def __post_init__(self) -> None:
        if not 0.5 < self.p1 < 1:
            raise ValueError(f"p1 must be above 0.5 and below 1, got {self.p1}; the leader has the majority under H1")
        check_error_budgets(self.alpha, self.beta)

    def log_likelihood_ratio(self, first: Counts, second: Counts) -> Floats:
        """v_1 log 2 p1 + v_2 log 2 (1 - p1)."""
        ratio: Floats = first * np.log(2 * self.p1) + second * np.log(2 * (1 - self.p1))
        return ratio


@dataclass(frozen=True)
class MSPRT(LikelihoodRatioTest):
    """Test of p = 1/2 against p from Beta(``prior_alpha``, ``prior_beta``), truncated to (1/2, 1).

    >>> from apportion.stopping import decide
    >>> decide(["42", "41", "42", "42", "42", "41"] * 10, rule="msprt").samples
    5
    """

    prior_alpha: float = 1e6
    prior_beta: float = 1e6
    alpha: float = 0.05
    beta: float = 0.94994

    name: ClassVar[str] = "msprt"

    def __post_init__(self) -> None:
        if not 0 < self.prior_beta <= self.prior_alpha < np.inf:
            raise ValueError(
                f"prior_beta must be above 0 and at most prior_alpha, got {self.prior_beta} and {self.prior_alpha}; "
                "p is above 1/2 under H1"
            )
        check_error_budgets(self.alpha, self.beta)

    def log_likelihood_ratio(self, first: Counts, second: Counts) -> Floats:
        """Log of the mean of (2 p)^v_1 (2 (1 - p))^v_2 over the truncated prior."""
        base = np.max(second, initial=0) + 1
        pairs, place = np.unique(first * base + second, return_inverse=True)  # for the incomplete Beta takes its time
        ratio: Floats = self._log_mean(*np.divmod(pairs, base))[place]
        return ratio

    def _log_mean(self, first: Counts, second: Counts) -> Floats:
        a, b = self.prior_alpha, self.prior_beta
        whole = (
            _log_rising(a, first)
            + _log_rising(b, second)
            - _log_rising(a + b, first + second)
            + first * np.log(2 * a / (a + b))
            + second * np.log(2 * b / (a + b))
        )
        kept = np.log1p(-special.betainc(a + first, b + second, 0.5)) - np.log1p(-special.betainc(a, b, 0.5))
        log_mean: Floats = whole + kept
        return log_mean


def _log_rising(start: float, steps: Counts) -> Floats:
    """log of start (start + 1) ... (start + steps - 1) / start^steps, [...]."""
    sums: Floats = np.cumsum(np.log1p(np.arange(np.max(steps, initial=0)) / start))
    return np.append(0.0, sums)[steps]
