"""The calibrated rule: stop when the risk of another winner is below a price for the samples that remain.

The risk is that of the posterior-predictive rule: the probability that the full vote of M samples does not choose the
present leader. Each remaining sample is worth the same accepted risk, so after t samples the rule stops if

    risk <= threshold * (1 - t / M).

``PosteriorPredictive`` accepts the same risk at every t. To end a question early saves many samples, and to end it late
saves few, so a fixed total of disagreement buys more samples if the accepted risk falls with t. This is the stopping
rule for a cost per sample if the only other choice is to take all M samples.

The threshold is calibrated, because the risk is an upper bound under a broad prior and is several times too large. On
recorded answers a threshold of 3 eps keeps the disagreement at most eps:

- ``SCALE`` = 3 was learned on four recorded data sets: the Game of 24 with and without chain of thought (GPT-4; MIT
  licence), and GSM8K (gpt-4o-mini) and AIME 2024 (o3-mini) of Lee et al. 2025 (arXiv 2503.17587). It is the largest
  multiple of 1/2 with which no set disagrees more than eps, for M of 16, 32 and 64 and eps from .003 to .05. The Game
  of 24 decides it. No answers are kept, only the number.
- ``FEW`` = .1 is the prior probability that the answers are few, 1/2 in ``PosteriorPredictive``. It was chosen on the
  same sets, so that the largest ratio to the samples of ``AdaptiveConsistencyBeta`` at equal agreement is smallest.

This is a measurement, and no guarantee for other data. benchmarks/calibrated.py learns both numbers without one set and
reports on that set. ``audited_threshold`` finds the threshold for your own questions, with a guarantee.

Note: as with ``PosteriorPredictive``, a new answer can very rarely lower the risk more than a vote for the leader. Then
``earliest`` asks for a few samples more than needed: on recorded answers in 1 of 1,000 questions or less.

Reference: ours.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apportion.checks import check_numbers
from apportion.stopping.base import CountRule
from apportion.stopping.overtaking import log_prior
from apportion.stopping.posterior_predictive import check_eps, overtaking_risk
from apportion.types import Counts, Floats, Mask

SCALE = 3.0
"""Threshold divided by eps."""

FEW = 0.1
"""Prior probability of the hypotheses with few answers."""

PRIOR = log_prior(FEW)


@dataclass(frozen=True)
class Calibrated(CountRule):
    """Stops when the risk of another winner is at most ``threshold`` times the share of samples that remain.

    Args:
        eps: the share of questions whose answer may differ from that of the full vote.
        threshold: the accepted risk at the start; None takes 3 eps, learned on recorded answers. With a threshold,
            eps decides nothing, and is the disagreement that the threshold stands for (``audited_threshold``).

    >>> from apportion.stopping import decide
    >>> decide(["a"] * 64, "calibrated").samples, decide(["a", "b"] * 32, "calibrated").samples
    (4, 64)
    """

    eps: float = 0.01
    threshold: float | None = None

    name: ClassVar[str] = "calibrated"

    def __post_init__(self) -> None:
        check_numbers(self)
        check_eps(self.eps)
        if self.threshold is not None and not 0 <= self.threshold < np.inf:
            raise ValueError(
                f"threshold must be at least 0 and finite, got {self.threshold}; leave it out to take it from eps"
            )

    @property
    def accepted(self) -> float:
        """The accepted risk at the start."""
        return SCALE * self.eps if self.threshold is None else self.threshold

    def expected(self, votes: Counts, samples: Counts, max_samples: int) -> Floats:
        """Return the disagreement with the full vote that is expected, [...], on the scale of eps.

        It is the risk, divided by what the accepted risk is of eps. So a question that the rule ended has at most eps.
        """
        risk = overtaking_risk(votes, samples, max_samples, prior=PRIOR)
        return np.minimum(risk * (self.eps / self.accepted if self.accepted else 1.0), 1.0)

    def enough(self, votes: Counts, samples: Counts, max_samples: int) -> Mask:
        """Return whether there is a vote and the score is at most the accepted risk, [...]."""
        return votes.any(axis=-1) & (risk_score(votes, samples, max_samples, self.accepted) <= self.accepted)


def risk_score(votes: Counts, samples: Counts, max_samples: int, limit: float = np.inf) -> Floats:
    """Return the risk over the share of samples that remain, [...]; infinite if none remain and the risk is not 0.

    ``votes`` is [..., K], ``samples`` is [...]. Above ``limit`` the score is inexact.
    """
    left = 1 - np.asarray(samples) / max_samples
    risk = overtaking_risk(votes, samples, max_samples, limit * left * (1 + 1e-9) if limit < np.inf else np.inf, PRIOR)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(risk == 0, 0.0, risk / left)
