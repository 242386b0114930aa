"""OptPO's Bayesian sequential probability ratio test between the leader and the runner-up.

m answers are possible; each vote is right with probability p_0 and else one of the other m - 1, all alike. Then the
Bayes factor of the leader L against the runner-up S depends on the gap of their votes alone (Section 3.2):

    Lambda_t = kappa^Delta_t,   kappa = p_0 (m - 1) / (1 - p_0),   Delta_t = v_L(t) - v_S(t),

and Wald's boundaries for the error budgets alpha and beta are A = (1 - beta) / alpha and B = beta / (1 - alpha): stop
for L at Lambda_t >= A, for S at Lambda_t <= B, not before N samples, for L at M. p_0 is estimated by the majority's
share of the first N samples, times 0.6, and a boundary must be exceeded 5 times (Section 4.1).

Reference: Wang et al. 2025, "OptPO", arXiv 2512.02882. Notes:

- m is not defined where answers are open. Here it is the number of distinct answers so far, at least 2 (a unanimous
  stream would have kappa = 0 and never stop), or what ``choices`` says, as for multiple choice. Counting answers so far
  has a price: a junk answer raises m, so kappa, so the confidence in the leader.
- kappa <= 1 happens: whenever the majority's share, times 0.6, is at most 1/m. The paper assumes it away. By default no
  boundary is reached then, and sampling goes on; ``low_accuracy="literal"`` reverses the inequalities as the text says:
  Lambda falls with the gap, so a *large* lead stops for the *runner-up*, or for the leader where no other answer has a
  vote. Lambda_t <= B decides then, not the floor that the paper has for Delta_B, which is a vote short of it.
- B is never reached while kappa > 1, for the gap is at least 0 and B < 1. So beta acts through A alone.
- N is 32 in the paper's main results and 16 in its ablation (Table 3). Here it is 16: a vote retains nothing for an
  update.
- "Exceeded 5 times" counts the samples at which a boundary is exceeded, not necessarily in a row, each boundary for
  itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from apportion.stopping.base import Rule, leader, rivals, top_two
from apportion.stopping.wald import check_error_budgets, log_boundaries
from apportion.types import Counts, Floats, Mask

LowAccuracy = Literal["continue", "literal"]

ROUNDING = 1e-9
"""How far off a boundary log Lambda may be and count as on it: kappa = 3 with a gap of 2 reaches A = 9."""


@dataclass(frozen=True)
class OptPO(Rule):
    """Bayesian SPRT on the gap between the two leading answers.

    ``min_samples`` is N, ``p0_factor`` the 0.6 of Section 4.1, ``exceedances`` how often a boundary must be exceeded,
    ``choices`` m where it is known (the options of a multiple choice), ``low_accuracy`` what kappa <= 1 does.

    >>> from apportion.stopping import decide
    >>> decide(["42"] * 64, rule="optpo", max_samples=64).samples
    20
    """

    min_samples: int = 16
    alpha: float = 0.05
    beta: float = 0.05
    p0_factor: float = 0.6
    exceedances: int = 5
    choices: int | None = None
    low_accuracy: LowAccuracy = "continue"

    name: ClassVar[str] = "optpo"

    def __post_init__(self) -> None:
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

    def check(self, max_samples: int) -> None:
        """Raises ValueError where N is more than M."""
        if self.min_samples > max_samples:
            raise ValueError(
                f"min_samples must be at most max_samples, got {self.min_samples} and {max_samples}; lower min_samples"
            )

    def stops(self, votes: Counts, max_samples: int) -> Mask:
        """Where either boundary has been exceeded often enough."""
        for_leader, for_runner_up = self._exceeded(votes)
        stopped: Mask = (for_leader >= self.exceedances) | (for_runner_up >= self.exceedances)
        return stopped

    def winner(self, votes: Counts, max_samples: int) -> Counts:
        """The runner-up where its boundary alone has stopped and it has a vote, else the leader."""
        chosen = leader(votes)
        if self.low_accuracy == "continue":
            return chosen
        for_leader, for_runner_up = self._exceeded(votes)
        lost = (for_runner_up >= self.exceedances) & (for_leader < self.exceedances)
        return np.where(lost, leader(rivals(votes)), chosen)  # an only answer has place 0, as has the first of none

    def earliest(self, votes: Counts, max_samples: int) -> Counts:
        """As many as the boundary must still be exceeded, counted from N on: any answer may raise m, so kappa."""
        taken = votes.shape[-2]
        if taken < self.min_samples:
            soonest = np.full(votes.shape[:-2], self.min_samples - 1 - taken + self.exceedances)
        else:
            soonest = self.exceedances - np.maximum(*(exceeded[..., -1] for exceeded in self._exceeded(votes)))
        more: Counts = np.minimum(np.maximum(soonest, 1), max_samples - taken)
        return more

    def log_bayes_factor(self, votes: Counts) -> tuple[Floats, Floats]:
        """log kappa, and log Lambda_t = Delta_t log kappa, [..., T] each; NaN before N samples."""
        first, second = top_two(votes)
        p0, seen = np.full(votes.shape[:-1], np.nan), np.maximum((votes > 0).sum(axis=-1), 2)
        if votes.shape[-2] >= self.min_samples:
            share = first[..., self.min_samples - 1, None] / self.min_samples
            p0[..., self.min_samples - 1 :] = self.p0_factor * share
        others = (seen if self.choices is None else self.choices) - 1
        tied = (first == second) & ~np.isnan(p0)
        with np.errstate(divide="ignore", invalid="ignore"):  # kappa = 0 where none of the first N samples voted
            log_kappa: Floats = np.log(p0 * others) - np.log1p(-p0)
            return log_kappa, np.where(tied, 0.0, (first - second) * log_kappa)

    def _exceeded(self, votes: Counts) -> tuple[Counts, Counts]:
        """How often the leader's and the runner-up's boundary have been exceeded so far, [..., T] each."""
        log_kappa, log_lambda = self.log_bayes_factor(votes)
        lower, upper = log_boundaries(self.alpha, self.beta)
        for_leader = (log_kappa > 0) & (log_lambda >= upper - ROUNDING)
        for_runner_up = (log_kappa < 0) & (log_lambda <= lower + ROUNDING) & (self.low_accuracy == "literal")
        return for_leader.cumsum(axis=-1), for_runner_up.cumsum(axis=-1)
