"""The posterior-predictive rule: stop once the full vote would hardly say anything else.

Stops when the probability that the majority of ``max_samples`` samples differs from the present leader is at most eps.
The answers are believed to come from a Chinese restaurant process (the predictive form of a Dirichlet process) whose
concentration is unknown, spread over a logarithmic grid and learnt from the number of distinct answers. The probability
is a union bound over the rivals, each overtaking by exact Beta-binomial odds, and over answers not seen yet; a tie
counts as a difference (``overtaking.py``). So eps bounds the expected disagreement with the full vote, question by
question, as far as the prior is right; the benchmark says how it holds on recorded answers, and where it does not: on
two answers of nearly equal probability. A sample without an answer counts as one more answer, which never wins.

Compared with adaptive consistency, which asks whether the leader is the likeliest answer, this asks whether it wins the
vote that would have been paid for: close races are left alone when few samples remain, for ties and noise end them.

Reference: ours; predictive stopping is known from clinical trials (Spiegelhalter et al. 1986, Control. Clin. Trials 7).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apportion.stopping.base import CountRule, leader
from apportion.stopping.overtaking import overtaking
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
    distinct = (cells > 0).sum(axis=1) + (cells.sum(axis=1) < taken)
    place = leader(cells)
    first = cells[np.arange(len(cells)), place]
    risk = np.ones(len(cells))
    rivals = np.where(np.arange(cells.shape[1]) == place[:, None], 0, cells)
    odds = _Mixed(max_samples, taken, distinct, first)
    some, second = np.flatnonzero(first > 0), rivals.max(axis=1)
    risk[some] = odds(some, second[some])
    going = some[(risk[some] <= limit) & (second[some] > 0)]
    if going.size:
        risk[going] = _union(odds, going, rivals[going])
    return risk.reshape(votes.shape[:-1])


class _Mixed:
    """Overtaking probabilities of cells, their concentrations averaged out; each distinct case is computed once."""

    def __init__(self, max_samples: int, samples: Counts, distinct: Counts, first: Counts) -> None:
        self.max_samples, self.samples, self.distinct, self.first = max_samples, samples, distinct, first

    def __call__(self, cells: Counts, rival: Counts) -> Floats:
        """[n] for the rivals with ``rival`` [n] votes of ``cells`` [n], which may repeat."""
        size = self.max_samples + 2
        key = (self.samples[cells] * size + self.distinct[cells]) * size + self.first[cells]
        _, one, places = np.unique(key * size + rival, return_index=True, return_inverse=True)
        probabilities, case = overtaking(self.max_samples), cells[one]
        weights = probabilities.concentrations(self.samples[case], self.distinct[case])
        odds = probabilities.odds(self.samples[case], self.first[case], rival[one])
        mixed: Floats = (weights * odds).sum(axis=1)[places]
        return mixed


def _union(odds: _Mixed, cells: Counts, rivals: Counts) -> Floats:
    """The summed odds [n] of every rival of ``cells`` [n], seen (``rivals`` [n, K], 0 for the leader) and not seen."""
    width = int(rivals.max()) + 1
    row, column = np.nonzero(rivals)
    many = np.bincount(row * width + rivals[row, column], minlength=len(cells) * width)
    kinds = np.flatnonzero(many)
    row, votes = np.divmod(kinds, width)
    seen = np.bincount(row, odds(cells[row], votes) * many[kinds], minlength=len(cells))
    return seen + odds(cells, np.zeros(len(cells), np.int64))
