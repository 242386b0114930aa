"""Adaptive-Consistency: stop once the leader is probably the most probable answer.

A uniform prior over the probabilities of the answers makes the posterior Dirichlet(votes + 1). Sampling stops when the
posterior probability that the leader's probability is the largest reaches ``confidence``:

- ``AdaptiveConsistencyBeta`` compares the leader with the runner-up alone: P(p > 1/2) under Beta(v_1 + 1, v_2 + 1).
- ``AdaptiveConsistencyDirichlet`` compares it with every answer seen, or with the most frequent ones.

Reference: Aggarwal et al. 2023, "Let's Sample Step by Step", arXiv 2305.11860, and its package AdaptiveConsistency
1.0.0. Notes:

- The package integrates numerically, for the Dirichlet rule by Monte Carlo or, with ``use_markov=False``, by nested
  quadrature. Both rules are exact here; the Beta rule agrees with the package on every decision. Its Monte Carlo needs
  a numpy before 1.24: with a later one it fails inside and the rule never stops.
- As there, a unanimous stream is compared with one answer without votes, the Dirichlet rule is the Beta rule below
  three distinct answers, and it looks at the 5 most frequent answers, the leader among them.
- Only the leader can reach a confidence above 1/2, so ``confidence`` must be.

The Dirichlet probability is one integral. With independent X_j ~ Gamma(v_j + 1), of distribution functions F_j, it is

    P(X_1 > X_j for all j > 1) = E[prod_{j > 1} F_j(X_1)],

here by the trapezoidal rule in y = sqrt(x). In y a Gamma variable is nearly normal with standard deviation 1/2 whatever
its shape, so one grid serves all; the integrand is entire, dies like exp(-y^2) at the top, and vanishes to the order
2 sum(v_j + 1) - 1 at 0, which is at least 11 for three answers. So the error falls faster than any power of the step
down to about step^12: at 0.1 it is below 1e-12, checked against the exact rational value.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
from scipy import special

from apportion.stopping.base import CountRule, top_two
from apportion.types import Counts, Floats, Mask

STEP = 0.1
"""Spacing of the quadrature's nodes in the square root of a Gamma variable."""

TAIL = 5.0
"""How far the nodes reach beyond the square root of the largest shape: 10 standard deviations."""

BLOCK = 2**14
"""Rows of votes integrated at once."""


@dataclass(frozen=True)
class AdaptiveConsistencyBeta(CountRule):
    """Stops when the leader beats the runner-up with probability ``confidence``.

    >>> from apportion.stopping import decide
    >>> decide(["42"] * 64, rule="adaptive_consistency_beta").samples
    4
    """

    confidence: float = 0.95

    name: ClassVar[str] = "adaptive_consistency_beta"

    def __post_init__(self) -> None:
        _check_confidence(self.confidence)

    def enough(self, votes: Counts, samples: Counts, max_samples: int) -> Mask:
        """Whether P(p > 1/2) >= confidence under Beta(v_1 + 1, v_2 + 1)."""
        enough: Mask = beats(*top_two(votes)) >= self.confidence
        return enough


@dataclass(frozen=True)
class AdaptiveConsistencyDirichlet(CountRule):
    """Stops when the leader beats the other answers together with probability ``confidence``.

    ``top`` is how many of the most frequent answers are looked at, the leader among them; None for all that were seen.

    >>> from apportion.stopping import decide
    >>> stream = ["42", "41", "40", "39"] + ["42"] * 60
    >>> decide(stream, rule="adaptive_consistency_beta").samples
    9
    >>> decide(stream, rule="adaptive_consistency_dirichlet").samples
    11
    """

    confidence: float = 0.95
    top: int | None = 5

    name: ClassVar[str] = "adaptive_consistency_dirichlet"

    def __post_init__(self) -> None:
        _check_confidence(self.confidence)
        if self.top is not None and self.top < 3:
            raise ValueError(
                f"top must be at least 3, got {self.top}; use adaptive_consistency_beta for the two most frequent"
            )

    def enough(self, votes: Counts, samples: Counts, max_samples: int) -> Mask:
        """Whether the leader's probability is the largest with probability ``confidence`` under Dirichlet(votes + 1).

        Beating the runner-up alone is at least as probable, which settles most cells without an integral.
        """
        enough: Mask = np.asarray(beats(*top_two(votes)) >= self.confidence)
        crowded = enough & ((votes > 0).sum(axis=-1) > 2)
        enough[crowded] = leads(votes[crowded], self.top) >= self.confidence
        return enough


def beats(first: Counts, second: Counts) -> Floats:
    """P(p > 1/2), [...], under Beta(first + 1, second + 1) from the votes [...] of two answers.

    >>> float(beats(np.array(4), np.array(0)))
    0.96875
    """
    probability: Floats = special.betainc(second + 1.0, first + 1.0, 0.5)
    return probability


def leads(votes: Counts, top: int | None = None) -> Floats:
    """P(the leader's probability is the largest), [...], under Dirichlet(votes + 1) from ``votes`` [..., K].

    Answers without votes are left out, as are all but the ``top`` most frequent. Absolute error below 1e-9.

    >>> leads(np.array([[2, 2, 2], [9, 1, 1]])).round(6).tolist()
    [0.333333, 0.988618]
    """
    probability: Floats = np.array(beats(*top_two(votes)))
    crowded = (votes > 0).sum(axis=-1) > 2
    if crowded.any():
        rows, place = _distinct(-np.sort(-votes[crowded], axis=-1)[..., :top])
        blocks = [_integrated(rows[start : start + BLOCK]) for start in range(0, len(rows), BLOCK)]
        probability[crowded] = np.concatenate(blocks)[place]
    return probability


def _distinct(ranked: Counts) -> tuple[Counts, Counts]:
    """The distinct rows of ``ranked`` [C, K], and the place of each row among them, [C]."""
    base = int(ranked.max()) + 1
    if base ** ranked.shape[-1] < 2**63:
        keys = ranked @ base ** np.arange(ranked.shape[-1])
        _, first, place = np.unique(keys, return_index=True, return_inverse=True)
        return ranked[first], place
    rows, place = np.unique(ranked, axis=0, return_inverse=True)
    return rows, place


def _integrated(ranked: Counts) -> Floats:
    """P(the first wins), [U], by quadrature from ``ranked`` [U, K], most votes first, at least three answers each."""
    log_below, weights = _gamma_tables(1 << int(ranked.max()).bit_length())
    rows, columns = np.nonzero(ranked[:, 1:])
    rivals = np.zeros((len(ranked), len(log_below)))
    np.add.at(rivals, (rows, ranked[:, 1:][rows, columns]), 1)
    probability: Floats = np.einsum("un,un->u", np.exp(rivals @ log_below), weights[ranked[:, 0]])
    return probability


@cache
def _gamma_tables(size: int) -> tuple[Floats, Floats]:
    """Log distribution function and quadrature weight of Gamma(v + 1) at each node, [V, n] each, V = ``size``."""
    shape = np.arange(1.0, size + 1)[:, None]
    roots = np.arange(STEP, np.sqrt(size) + TAIL, STEP)
    nodes = roots**2
    log_below = np.log(np.maximum(special.gammainc(shape, nodes), np.finfo(float).tiny))
    weights = 2 * STEP / roots * np.exp(shape * np.log(nodes) - nodes - special.gammaln(shape))
    return log_below, weights


def _check_confidence(confidence: float) -> None:
    if not 0.5 < confidence < 1:
        raise ValueError(f"confidence must be above 0.5 and below 1, got {confidence}; the paper has 0.95")
