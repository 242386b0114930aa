"""Sequential probability ratio tests between the leader and the runner-up, as ConSol runs them.

Each of the v_1 + v_2 votes for the two leading answers is for the leader with probability p. H0 says that p = 1/2. H1
says that p = p1 (SPRT), or that p has a Beta prior truncated to (1/2, 1) (mixture SPRT). Sampling stops when the
likelihood ratio Lambda of H1 to H0 reaches one of Wald's boundaries (Section 2):

    Lambda >= A = (1 - beta) / alpha   accepts H1,        Lambda <= B = beta / (1 - alpha)   accepts H0.

The answer is the leader either way.

References: Lee et al. 2025, "ConSol", arXiv 2503.17587, and the package consol 0.3.0, whose defaults these are. Wald
1945, "Sequential Tests of Statistical Hypotheses", Annals of Mathematical Statistics 16, for the boundaries. Notes:

- The test chooses its side after seeing the votes, because the leader is the answer with more of them. So alpha is not
  an error rate here. The authors calibrate beta so that the rule does well.
- The default beta is just below 1 - alpha, so A is just above 1: 1.0005 for the SPRT and 1.0012 for the mSPRT. Both
  defaults stop when the leader is three votes ahead, as long as the runner-up has at most 985 votes. Both accept H0
  only at ties of at least 632 votes each (SPRT) or 127 (mSPRT), so never within 64 samples.
- The package evaluates the mixture with betaln at shapes of a million and log(1 - I). Here the ratio of Beta functions
  is a product of v_1 + v_2 factors near 1, summed in logarithms, and what is subtracted from 1 is at most 1/2.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apportion.checks import check_numbers
from apportion.stopping.base import CountRule
from apportion.stopping.votes import first_true, top_two
from apportion.types import Counts, Floats, Mask


def log_boundaries(alpha: float, beta: float) -> tuple[float, float]:
    """Return log B and log A, where B = beta / (1 - alpha) < 1 < A = (1 - beta) / alpha, for the two error budgets.

    >>> [round(math.exp(bound), 3) for bound in log_boundaries(0.05, 0.05)]
    [0.053, 19.0]
    """
    return math.log(beta / (1 - alpha)), math.log((1 - beta) / alpha)


def check_error_budgets(alpha: float, beta: float) -> None:
    """Raise ValueError unless B < 1 < A."""
    if not (alpha > 0 and beta > 0 and alpha + beta < 1):
        raise ValueError(
            f"alpha and beta must be above 0 and below 1 together, got {alpha} and {beta}; "
            "the boundaries would not enclose 1; 0.05 each is usual"
        )


class LikelihoodRatioTest(CountRule):
    """A test whose likelihood ratio rises with the leader's votes, and falls with the runner-up's votes and at ties."""

    alpha: float
    beta: float

    @abstractmethod
    def log_likelihood_ratio(self, first: Counts, second: Counts) -> Floats:
        """Return log Lambda, [...], from the votes of the leader and of the runner-up, [...] each."""

    def enough(self, votes: Counts, samples: Counts, max_samples: int) -> Mask:
        return self._decided(*top_two(votes))

    def earliest(self, votes: Counts, max_samples: int) -> Counts:
        """Return the smaller number of two cases.

        H1 is accepted soonest if all further samples vote for the leader. H0 is accepted soonest if the runner-up draws
        level and both stay level.
        """
        first, second = (v[..., None] for v in top_two(votes[..., -1:, :].sum(axis=-2)))
        more = np.arange(1, max_samples - votes.shape[-2] + 1)
        total = first + second + more
        level = np.minimum(second + more, total // 2)
        for_leader = self._decided(first + more, np.broadcast_to(second, total.shape))
        return first_true(for_leader | self._decided(total - level, level))

    def _decided(self, first: Counts, second: Counts) -> Mask:
        ratio = self.log_likelihood_ratio(first, second)
        lower, upper = log_boundaries(self.alpha, self.beta)
        return (ratio >= upper) | (ratio <= lower)


@dataclass(frozen=True)
class SPRT(LikelihoodRatioTest):
    """Wald's test of p = 1/2 against p = ``p1``.

    Args:
        p1: the leader's share of the two leading answers' votes under the alternative.
        alpha: error budget of the test: the accepted probability of a wrong decision for the leader.
        beta: the same for a wrong decision against the leader.

    >>> from apportion.stopping import decide
    >>> decide(["42", "41", "42", "42", "42", "41"] * 10, rule="sprt").samples
    5
    """

    p1: float = 0.5001
    alpha: float = 0.05
    beta: float = 0.949976

    name: ClassVar[str] = "sprt"

    def __post_init__(self) -> None:
        check_numbers(self)
        if not 0.5 < self.p1 < 1:
            raise ValueError(f"p1 must be above 0.5 and below 1, got {self.p1}; the leader has the majority under H1")
        check_error_budgets(self.alpha, self.beta)

    def log_likelihood_ratio(self, first: Counts, second: Counts) -> Floats:
        """Return v_1 log(2 p1) + v_2 log(2 (1 - p1)), [...]."""
        return first * np.log(2 * self.p1) + second * np.log(2 * (1 - self.p1))


@dataclass(frozen=True)
class MSPRT(LikelihoodRatioTest):
    """Test of p = 1/2 against p from Beta(``prior_alpha``, ``prior_beta``), truncated to (1/2, 1).

    Args:
        prior_alpha: first parameter of the Beta prior of p.
        prior_beta: second parameter of the Beta prior of p.
        alpha: error budget of the test: the accepted probability of a wrong decision for the leader.
        beta: the same for a wrong decision against the leader.

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
        check_numbers(self)
        if not 0 < self.prior_beta <= self.prior_alpha < np.inf:
            raise ValueError(
                f"prior_beta must be above 0 and at most prior_alpha, got {self.prior_beta} and {self.prior_alpha}; "
                "p is above 1/2 under H1"
            )
        check_error_budgets(self.alpha, self.beta)

    def log_likelihood_ratio(self, first: Counts, second: Counts) -> Floats:
        """Return the log of the mean of (2 p)^v_1 (2 (1 - p))^v_2 over the truncated prior, [...]."""
        from scipy import special  # noqa: PLC0415 - slow to import

        base = np.max(second, initial=0) + 1
        pairs, index = np.unique(first * base + second, return_inverse=True)  # the incomplete Beta function is slow
        first, second = np.divmod(pairs, base)
        a, b = self.prior_alpha, self.prior_beta
        whole = (
            _log_rising(a, first)
            + _log_rising(b, second)
            - _log_rising(a + b, first + second)
            + first * np.log(2 * a / (a + b))
            + second * np.log(2 * b / (a + b))
        )
        below, prior_below = (special.betainc(*shape, 0.5) for shape in ((a + first, b + second), (a, b)))
        return (whole + (np.log1p(-below) - np.log1p(-prior_below)))[index]


def _log_rising(start: float, steps: Counts) -> Floats:
    """Return the log of start (start + 1) ... (start + steps - 1) / start^steps, [...]."""
    sums = np.cumsum(np.log1p(np.arange(np.max(steps, initial=0)) / start))
    return np.append(0.0, sums)[steps]
