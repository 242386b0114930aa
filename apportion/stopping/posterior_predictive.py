"""The posterior-predictive rule: stop once the full vote would hardly say anything else.

Stops when the probability that the majority of ``max_samples`` samples differs from the present leader is at most eps.
What the answers look like is not known: they may be open, from one to hundreds, or a few of nearly equal probability.
``overtaking.py`` weighs these hypotheses by the votes. Under each, a rival overtakes with exact Beta-binomial odds; the
probability is their sum, over rivals seen and not seen yet (a union bound), and a tie counts as a difference. So eps
bounds the expected disagreement with the full vote, question by question, as far as the prior is right; the benchmark
says how it holds on recorded answers, and where it does not: on two answers of nearly equal probability, question after
question. A sample without an answer counts as one more answer, which never wins.

Compared with adaptive consistency, which asks whether the leader is the likeliest answer, this asks whether it wins the
vote that would have been paid for: close races are left alone when few samples remain, for ties and noise end them.

Reference: ours; predictive stopping is known from clinical trials (Spiegelhalter et al. 1986, Control. Clin. Trials 7).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apportion.stopping.base import CountRule, rivals
from apportion.stopping.overtaking import ANSWERS, overtaking
from apportion.types import Counts, Floats, Mask


@dataclass(frozen=True)
class PosteriorPredictive(CountRule):
    """Stops when the full vote differs from the leader with probability at most ``eps``.

    >>> from apportion.stopping import decide
    >>> decide(["a"] * 64, "posterior_predictive").samples, decide(["a", "b"] * 32, "posterior_predictive").samples
    (6, 64)
    """

    eps: float = 0.01

    name: ClassVar[str] = "posterior_predictive"

    def __post_init__(self) -> None:
        if not 0 < self.eps < 1:
            raise ValueError(f"eps must be above 0 and below 1, got {self.eps}; 0.01 is one question in a hundred")

    def enough(self, votes: Counts, samples: Counts, max_samples: int) -> Mask:
        """Whether the risk is at most eps. The largest rival alone decides most cells."""
        enough: Mask = _risk(votes, samples, max_samples, self.eps) <= self.eps
        return enough

    def risk(self, votes: Counts, samples: Counts, max_samples: int) -> Floats:
        """Probability [...], at most, that the full vote differs from the leader of ``votes`` [..., K].

        ``samples`` [...] were taken, at least as many as votes. 1 where there is no vote yet.
        """
        return _risk(votes, samples, max_samples, limit=np.inf)


def _risk(votes: Counts, samples: Counts, max_samples: int, limit: float) -> Floats:
    """The risk [...] where it is at most ``limit``; more than that anywhere else."""
    cells, taken = votes.reshape(-1, votes.shape[-1]), np.broadcast_to(samples, votes.shape[:-1]).reshape(-1)
    risk = np.ones(len(cells))
    some = np.flatnonzero(cells.any(axis=1))
    if some.size:
        risk[some] = _union(cells[some], taken[some], max_samples, limit)
    return risk.reshape(votes.shape[:-1])


def _union(votes: Counts, samples: Counts, max_samples: int, limit: float) -> Floats:
    """The summed odds [N] of all rivals after ``votes`` [N, K], some; of the largest alone where above ``limit``."""
    table, first, others = overtaking(max_samples), votes.max(axis=1), rivals(votes)
    silent = samples - votes.sum(axis=1)
    weights = table.weights(np.column_stack([votes, silent]), samples)
    second = others.max(axis=1)
    risk: Floats = (weights * table.odds(samples, first, second)).sum(axis=1) * (second > 0)
    going = np.flatnonzero(risk <= limit)
    width = int(second.max()) + 1
    row, column = np.nonzero(others[going])
    many = np.bincount(row * width + others[going[row], column], minlength=len(going) * width)
    kinds = np.flatnonzero(many)
    row, rival = going[kinds // width], kinds % width
    seen = many[kinds] * (weights[row] * table.odds(samples[row], first[row], rival)).sum(axis=1)
    distinct = (votes[going] > 0).sum(axis=1) + (silent[going] > 0)
    hidden = np.where(ANSWERS == 0, 1, np.maximum(ANSWERS - distinct[:, None], 0))
    unseen = weights[going] * hidden * table.odds(samples[going], first[going], np.zeros_like(going))
    risk[going] = np.bincount(row, seen, minlength=len(risk))[going] + unseen.sum(axis=1)
    return risk
