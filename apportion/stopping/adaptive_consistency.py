"""Adaptive-Consistency: stop as soon as the leader is the most probable answer with enough confidence.

Under a uniform prior over the probabilities of the answers the posterior is Dirichlet(votes + 1). Sampling stops when
the posterior probability that the leader's probability is the largest reaches ``confidence``:

- ``AdaptiveConsistencyBeta`` compares the leader only with the runner-up: P(p > 1/2) under Beta(v_1 + 1, v_2 + 1).
- ``AdaptiveConsistencyDirichlet`` compares it with every answer seen, or with the most frequent ones.

Reference: Aggarwal et al. 2023, "Let's Sample Step by Step", arXiv 2305.11860, and its package AdaptiveConsistency
1.0.0. Notes:

- The package integrates numerically; for the Dirichlet rule by Monte Carlo, or by nested quadrature with
  ``use_markov=False``. Here the Beta rule is exact, and the Dirichlet rule has an absolute error below 1e-9. In
  benchmarks/stopping the Beta rule agrees with the package on every decision. The package's Monte Carlo needs numpy
  before 1.24; with a later version it prints an error and the rule never stops.
- As in the package, a unanimous stream is compared with one answer without votes, the Dirichlet rule equals the Beta
  rule below three distinct answers, and it considers the 5 most frequent answers, including the leader.
- ``confidence`` must be above 1/2, because only the leader can reach a probability above 1/2.

The Dirichlet probability is one integral. For independent X_j ~ Gamma(v_j + 1) with distribution functions F_j it is

    P(X_1 > X_j for all j > 1) = E[prod_{j > 1} F_j(X_1)],

computed by the trapezoidal rule in y = sqrt(x). In y a Gamma variable is nearly normal with standard deviation 1/2
whatever its shape, so one grid serves all. The integrand is entire, falls like exp(-y^2) at the top, and vanishes to
the order 2 sum(v_j + 1) - 1 at 0, which is at least 11 for three answers. So the error falls faster than any power of
the step down to about step^12. At a step of 0.1 it is below 1e-12, checked against exact rational values.
"""

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from apportion.checks import check_numbers
from apportion.stopping.base import CountRule
from apportion.stopping.votes import top_two
from apportion.types import Counts, Floats, Mask

STEP = 0.1
"""Distance between quadrature nodes, in the square root of a Gamma variable."""

TAIL = 5.0
"""How far the nodes extend beyond the square root of the largest shape: 10 standard deviations."""

BLOCK = 2**14
"""Number of rows of votes integrated at once."""


@dataclass(frozen=True)
class AdaptiveConsistencyBeta(CountRule):
    """Stops when the leader is more probable than the runner-up with probability ``confidence``.

    Args:
        confidence: the probability at which it stops, from 1/2 to 1.

    >>> from apportion.stopping import decide
    >>> decide(["42"] * 64, rule="adaptive_consistency_beta").samples
    4
    """

    confidence: float = 0.95

    name: ClassVar[str] = "adaptive_consistency_beta"

    def __post_init__(self) -> None:
        check_numbers(self)
        _check_confidence(self.confidence)

    def enough(self, votes: Counts, samples: Counts, max_samples: int) -> Mask:
        """Return whether P(p > 1/2) >= confidence under Beta(v_1 + 1, v_2 + 1)."""
        return beta_confidence(*top_two(votes)) >= self.confidence


@dataclass(frozen=True)
class AdaptiveConsistencyDirichlet(CountRule):
    """Stops when the leader is more probable than every other answer with probability ``confidence``.

    Args:
        confidence: the probability at which it stops, from 1/2 to 1.
        top: the number of most frequent answers compared, including the leader; None compares all that were seen.

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
        check_numbers(self)
        _check_confidence(self.confidence)
        if self.top is not None and self.top < 3:
            raise ValueError(
                f"top must be at least 3, got {self.top}; use adaptive_consistency_beta for the two most frequent"
            )

    def enough(self, votes: Counts, samples: Counts, max_samples: int) -> Mask:
        """Return whether P(the leader's probability is the largest) >= confidence under Dirichlet(votes + 1).

        The Beta rule's probability is an upper bound, so most entries need no integral.
        """
        enough = np.asarray(beta_confidence(*top_two(votes)) >= self.confidence)
        crowded = enough & ((votes > 0).sum(axis=-1) > 2)
        enough[crowded] = dirichlet_confidence(votes[crowded], self.top) >= self.confidence
        return enough


def beta_confidence(first: Counts, second: Counts) -> Floats:
    """Return P(p > 1/2), [...], under Beta(first + 1, second + 1) from the votes [...] of two answers.

    >>> float(beta_confidence(np.array(4), np.array(0)))
    0.96875
    """
    from scipy import special  # noqa: PLC0415 - slow to import

    return special.betainc(second + 1.0, first + 1.0, 0.5)


def dirichlet_confidence(votes: Counts, top: int | None = None) -> Floats:
    """Return P(the leader's probability is the largest), [...], under Dirichlet(votes + 1) from ``votes`` [..., K].

    Only answers with votes are compared, and of those only the ``top`` most frequent. Absolute error below 1e-9.

    >>> dirichlet_confidence(np.array([[2, 2, 2], [9, 1, 1]])).round(6).tolist()
    [0.333333, 0.988618]
    """
    probability = np.array(beta_confidence(*top_two(votes)))
    crowded = (votes > 0).sum(axis=-1) > 2
    if crowded.any():
        ranked = -np.sort(-votes[crowded], axis=-1)[..., :top]
        rows, index = np.unique(ranked, axis=0, return_inverse=True)
        blocks = [_integrate(rows[start : start + BLOCK]) for start in range(0, len(rows), BLOCK)]
        probability[crowded] = np.concatenate(blocks)[index.reshape(-1)]  # numpy 2.0 returns [C, 1]
    return probability


def _integrate(ranked: Counts) -> Floats:
    """Return P(the leader wins), [U], by quadrature; rows of ``ranked`` [U, K] fall from the leader's votes, K >= 3."""
    log_below, weights = _gamma_tables(1 << int(ranked.max()).bit_length())
    rows, columns = np.nonzero(ranked[:, 1:])
    rivals = np.zeros((len(ranked), len(log_below)))
    np.add.at(rivals, (rows, ranked[:, 1:][rows, columns]), 1)
    return np.einsum("un,un->u", np.exp(rivals @ log_below), weights[ranked[:, 0]])


@cache
def _gamma_tables(size: int) -> tuple[Floats, Floats]:
    """Return the log distribution function and quadrature weight of Gamma(v + 1) at each node, [V, n]; V = ``size``."""
    from scipy import special  # noqa: PLC0415 - slow to import

    shape = np.arange(1.0, size + 1)[:, None]
    roots = np.arange(STEP, np.sqrt(size) + TAIL, STEP)
    nodes = roots**2
    log_below = np.log(np.maximum(special.gammainc(shape, nodes), np.finfo(float).tiny))
    weights = 2 * STEP / roots * np.exp(shape * np.log(nodes) - nodes - special.gammaln(shape))
    return log_below, weights


def _check_confidence(confidence: float) -> None:
    if not 0.5 < confidence < 1:
        raise ValueError(f"confidence must be above 0.5 and below 1, got {confidence}; the paper has 0.95")
