"""The posterior-predictive rule: stop when the full vote is unlikely to have another winner.

Sampling stops when the probability that the majority of ``max_samples`` samples differs from the present leader is at
most eps. Answers may be open, with one to hundreds of distinct ones, or few and nearly equally probable.
``overtaking.py`` weighs these hypotheses by the votes. Under each hypothesis the probability that a rival overtakes is
an exact Beta-binomial probability. The rule sums it over all rivals, seen and unseen (a union bound), and counts a tie
as a difference. A sample without an answer counts as a vote for one more answer, which never wins.

So eps bounds the expected disagreement with the full vote under the prior. In benchmarks/stopping the disagreement is
at most eps on every recorded data set. It exceeds eps, by up to 1.6 times, on some synthetic data sets whose questions
all have the same answer probabilities, such as .52 and .48.

Adaptive consistency asks whether the leader is the most probable answer. This rule asks whether the leader wins the
vote of ``max_samples`` samples.

Reference: ours. Predictive stopping is known from clinical trials (Spiegelhalter et al. 1986, Control. Clin. Trials 7).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apportion.checks import check_numbers
from apportion.stopping.base import CountRule
from apportion.stopping.overtaking import ANSWERS, LOG_PRIOR, overtaking
from apportion.stopping.votes import rival_votes
from apportion.types import Counts, Floats, Mask


@dataclass(frozen=True)
class PosteriorPredictive(CountRule):
    """Stops when the full vote differs from the leader with probability at most ``eps``, under the prior.

    Args:
        eps: the probability of another final answer at which it stops.

    >>> from apportion.stopping import decide
    >>> decide(["a"] * 64, "posterior_predictive").samples, decide(["a", "b"] * 32, "posterior_predictive").samples
    (6, 64)
    """

    eps: float = 0.01

    name: ClassVar[str] = "posterior_predictive"

    def __post_init__(self) -> None:
        check_numbers(self)
        check_eps(self.eps)

    def enough(self, votes: Counts, samples: Counts, max_samples: int) -> Mask:
        return self.risk(votes, samples, max_samples, self.eps) <= self.eps

    def risk(self, votes: Counts, samples: Counts, max_samples: int, limit: float = np.inf) -> Floats:
        """Return ``overtaking_risk`` under the prior with equal weights of open and few hypotheses, [...]."""
        return overtaking_risk(votes, samples, max_samples, limit)


def check_eps(eps: float) -> None:
    """Raise ValueError unless the share ``eps`` of questions is above 0 and below 1."""
    if not 0 < eps < 1:
        raise ValueError(f"eps must be above 0 and below 1, got {eps}; 0.01 is one question in a hundred")


def overtaking_risk(
    votes: Counts,
    samples: Counts,
    max_samples: int,
    limit: float | Floats = np.inf,
    prior: Floats = LOG_PRIOR,
) -> Floats:
    """Return an upper bound [...] of the probability that the full vote does not choose the leader of ``votes``.

    ``votes`` is [..., K]. ``samples`` [...] is the number of samples taken, at least the number of votes. The bound is
    1 before the first vote, and may exceed 1 because it is a sum over rivals. Above ``limit`` [...] it is inexact.
    ``prior`` [H] is the log prior of the hypotheses.
    """
    shape = votes.shape[:-1]
    cells, taken = votes.reshape(-1, votes.shape[-1]), np.broadcast_to(samples, shape).reshape(-1)
    limits, risk = np.broadcast_to(limit, shape).reshape(-1), np.ones(len(cells))
    some = np.flatnonzero(cells.any(axis=1))
    if some.size:
        risk[some] = _union_bound(cells[some], taken[some], max_samples, limits[some], prior)
    return risk.reshape(shape)


def _union_bound(votes: Counts, samples: Counts, max_samples: int, limit: Floats, prior: Floats) -> Floats:
    """Return the summed probability [N] that any rival overtakes, after ``votes`` [N, K] with at least one each.

    If the largest rival's probability alone is above ``limit`` [N], only that is returned.
    """
    table, first, others = overtaking(max_samples), votes.max(axis=1), rival_votes(votes)
    silent = samples - votes.sum(axis=1)
    weights = table.weights(np.column_stack([votes, silent]), samples, prior)
    second = others.max(axis=1)
    risk = (weights * table.probabilities(samples, first, second)).sum(axis=1) * (second > 0)
    going = np.flatnonzero(risk <= limit)
    if not going.size:
        return risk
    width = int(second.max()) + 1
    row, column = np.nonzero(others[going])
    many = np.bincount(row * width + others[going[row], column], minlength=len(going) * width)
    kinds = np.flatnonzero(many)
    row, rival = going[kinds // width], kinds % width
    seen = many[kinds] * (weights[row] * table.probabilities(samples[row], first[row], rival)).sum(axis=1)
    distinct = (votes[going] > 0).sum(axis=1) + (silent[going] > 0)
    hidden = np.where(ANSWERS == 0, 1, np.maximum(ANSWERS - distinct[:, None], 0))
    unseen = weights[going] * hidden * table.probabilities(samples[going], first[going], np.zeros_like(going))
    risk[going] = np.bincount(row, seen, minlength=len(risk))[going] + unseen.sum(axis=1)
    return risk
