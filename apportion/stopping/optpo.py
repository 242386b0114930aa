"""OptPO's Bayesian sequential probability ratio test between the leader and the runner-up.

Each vote is for the right answer with probability p_0, and otherwise for one of the other m - 1 answers with equal
probability. Then the Bayes factor of the leader L against the runner-up S depends only on the gap between their votes
(Section 3.2):

    Lambda_t = kappa^Delta_t,   kappa = p_0 (m - 1) / (1 - p_0),   Delta_t = v_L(t) - v_S(t).

Wald's boundaries for the error budgets alpha and beta are A = (1 - beta) / alpha and B = beta / (1 - alpha). From N
samples on, sampling stops with the answer L if Lambda_t >= A and with the answer S if Lambda_t <= B. At M samples it
stops with L. p_0 is estimated as 0.6 times the majority's share of the first N samples, and a boundary must be exceeded
5 times (Section 4.1).

Reference: Wang et al. 2025, "OptPO", arXiv 2512.02882. Notes:

- The paper does not define m for open answers. Here m is ``choices`` if it is given, as for multiple choice. Otherwise
  it is the number of distinct answers so far, but at least 2, because a unanimous stream would have kappa = 0 and never
  stop. Counting answers has a price: a junk answer raises m, and so kappa and the confidence in the leader.
- kappa <= 1 if 0.6 times the majority's share is at most 1/m. The paper assumes that this does not happen. By default
  no boundary is reached then, and sampling goes on. ``low_accuracy="literal"`` reverses the inequalities as the text
  says: Lambda falls with the gap, so a *large* lead stops with the *runner-up*, or with the leader if no other answer
  has a vote. Lambda_t <= B decides then, not the paper's floor for Delta_B, which is one vote short of it.
- B is never reached while kappa > 1, because the gap is at least 0 and B < 1. So beta acts only through A.
- N is 32 in the paper's main results and 16 in its ablation (Table 3). Here it is 16, because a vote retains no
  rollouts for an update.
- "Exceeded 5 times" counts the samples at which a boundary is exceeded. They need not be consecutive, and each boundary
  has its own count, whichever answer leads.
- The paper asks for 5 exceedances "across the rollouts" (Section 4.1), and lets sampling stop from N on (Section 3.2).
  By default (``count_from="start"``) every sample is counted, the first N included. p_0 is known only at N, so the
  samples before N are judged in hindsight: at N, each of them is compared with the boundaries by its own gap and its
  own number of distinct answers, with the p_0 found at N. Sampling stops at the first sample from N on that exceeds a
  boundary (Section 3.2), if that makes at least 5. So a stream that was unanimous from the start stops at N.
  ``count_from="min_samples"`` counts from sample N on, so that no stream stops before N + 4 samples.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from apportion.checks import check_integer, check_numbers
from apportion.stopping.base import Rule
from apportion.stopping.sprt import check_error_budgets, log_boundaries
from apportion.stopping.votes import leader, rival_votes, top_two
from apportion.types import Counts, Floats, Mask

LowAccuracy = Literal["continue", "literal"]
CountFrom = Literal["start", "min_samples"]

ROUNDING = 1e-9
"""How far log Lambda may be from a boundary and still reach it, so that kappa = 3 with a gap of 2 reaches A = 9."""


def vote_gaps(p0: float, choices: int, alpha: float = 0.05, beta: float = 0.05) -> tuple[int, int]:
    """Return Delta_A and Delta_B, the gaps of votes that decide: for the leader at Delta_A, against it at Delta_B.

    Delta_A = ceil(log A / log kappa) and Delta_B = floor(log B / log kappa), section 3.2. Raises ValueError unless
    kappa > 1, that is p0 > 1 / ``choices``, as the paper assumes.

    >>> vote_gaps(0.6, choices=4)
    (2, -2)
    """
    check_error_budgets(alpha, beta)
    if not 1 / check_integer("choices", choices, 2) < p0 < 1:
        raise ValueError(
            f"p0 must be above 1 / choices and below 1, got {p0} for {choices}; below it a gap says nothing"
        )
    log_kappa = np.log(p0 * (choices - 1) / (1 - p0))
    lower, upper = log_boundaries(alpha, beta)
    return int(np.ceil(upper / log_kappa - ROUNDING)), int(np.floor(lower / log_kappa + ROUNDING))


@dataclass(frozen=True)
class BayesianSPRT(Rule):
    """Bayesian SPRT on the gap between the two leading answers.

    Args:
        min_samples: N, the smallest number of samples.
        alpha: error budget of the test: the accepted probability of a wrong decision for the leader.
        beta: the same for a wrong decision against the leader.
        p0_factor: the 0.6 of Section 4.1.
        exceedances: how often a boundary must be exceeded.
        choices: m if it is known, as for multiple choice; by default the number of distinct answers so far.
        low_accuracy: at kappa <= 1, "continue" never stops; "literal" follows the paper's text.
        count_from: "start" counts exceedances at all samples, as in the paper; "min_samples" from sample N on.

    >>> from apportion.stopping import decide
    >>> decide(["42"] * 64, rule="optpo").samples, decide(["42"] * 64, rule="optpo", count_from="min_samples").samples
    (16, 20)
    """

    min_samples: int = 16
    alpha: float = 0.05
    beta: float = 0.05
    p0_factor: float = 0.6
    exceedances: int = 5
    choices: int | None = None
    low_accuracy: LowAccuracy = "continue"
    count_from: CountFrom = "start"

    name: ClassVar[str] = "optpo"
    _bounded: ClassVar[str | None] = "min_samples"

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.min_samples < 1 or self.exceedances < 1:
            raise ValueError(
                f"min_samples and exceedances must be at least 1, got {self.min_samples} and {self.exceedances}; "
                "the paper has 16 or 32, and 5"
            )
        check_error_budgets(self.alpha, self.beta)
        if not 0 < self.p0_factor < 1:
            raise ValueError(f"p0_factor must be above 0 and below 1, got {self.p0_factor}; the paper has 0.6")
        if self.choices is not None and self.choices < 2:
            raise ValueError(f"choices must be at least 2, got {self.choices}; or leave it out to count them")
        if self.low_accuracy not in ("continue", "literal"):
            raise ValueError(f"low_accuracy must be continue or literal, got {self.low_accuracy!r}")
        if self.count_from not in ("start", "min_samples"):
            raise ValueError(f"count_from must be start or min_samples, got {self.count_from!r}; the paper has start")

    def stops(self, votes: Counts, max_samples: int) -> Mask:
        return np.asarray(self._stopped(votes).any(axis=0))

    def winner(self, votes: Counts, max_samples: int) -> Counts:
        """Return the runner-up if it has a vote and only its boundary has stopped, else the leader."""
        if self.low_accuracy == "continue":
            return leader(votes)
        for_leader, for_runner_up = self._stopped(votes)
        rival = leader(rival_votes(votes))  # index 0, the only answer, if no rival has a vote
        return np.where(for_runner_up & ~for_leader, rival, leader(votes))

    def earliest(self, votes: Counts, max_samples: int) -> Counts:
        """Return the exceedances still missing, and at least what is missing to N; any answer may raise m and so kappa.

        Before N, p_0 is unknown, so every sample that counts may still turn out to be an exceedance.
        """
        taken, least = votes.shape[-2], self.min_samples
        if taken < least:
            from_start = self.count_from == "start"
            stop = max(least, self.exceedances) if from_start else least - 1 + self.exceedances
            soonest = np.full(votes.shape[:-2], stop - taken)
        else:
            soonest = self.exceedances - self._exceeded(votes).sum(axis=-1).max(axis=0)
        return np.minimum(np.maximum(soonest, 1), max_samples - taken)

    def log_bayes_factor(self, votes: Counts) -> tuple[Floats, Floats]:
        """Return log kappa and log Lambda_t = Delta_t log kappa after each sample, [..., T] each.

        The samples before N are judged with the p_0 found at N. With fewer than N samples everything is NaN.
        """
        first, second = top_two(votes)
        p0, seen = np.full(votes.shape[:-1], np.nan), np.maximum((votes > 0).sum(axis=-1), 2)
        if votes.shape[-2] >= self.min_samples:
            p0[...] = self.p0_factor * first[..., self.min_samples - 1, None] / self.min_samples
        others = (seen if self.choices is None else self.choices) - 1
        tied = (first == second) & ~np.isnan(p0)
        with np.errstate(divide="ignore", invalid="ignore"):  # kappa = 0 if none of the first N samples voted
            log_kappa = np.log(p0 * others) - np.log1p(-p0)
            return log_kappa, np.where(tied, 0.0, (first - second) * log_kappa)

    def _exceeded(self, votes: Counts) -> Mask:
        """Return whether each sample exceeds the boundary A (leader) and B (runner-up), and counts, [2, ..., T]."""
        log_kappa, log_lambda = self.log_bayes_factor(votes)
        lower, upper = log_boundaries(self.alpha, self.beta)
        for_leader = (log_kappa > 0) & (log_lambda >= upper - ROUNDING)
        for_runner_up = (log_kappa < 0) & (log_lambda <= lower + ROUNDING) & (self.low_accuracy == "literal")
        return np.stack([for_leader, for_runner_up]) & (self._from_minimum(votes) | (self.count_from == "start"))

    def _stopped(self, votes: Counts) -> Mask:
        """Return whether A and B have stopped it by now, [2, ..., T]: a sample from N on was the last one needed."""
        exceeded = self._exceeded(votes)
        last = exceeded & (exceeded.cumsum(axis=-1) >= self.exceedances) & self._from_minimum(votes)
        return np.logical_or.accumulate(last, axis=-1)

    def _from_minimum(self, votes: Counts) -> Mask:
        """Return whether each sample is number N or later, [T]."""
        return np.arange(1, votes.shape[-2] + 1) >= self.min_samples
