"""A Gaussian process over prompt embeddings: prompts like those that failed lately are expected to fail.

Reference: H. T. Nguyen, B. Nguyen, W. Ma, Y. Zhao, R. She, V. A. Nguyen, "Adaptive Rollout Allocation for Online
Reinforcement Learning with Verifiable Rewards", 2026, arXiv 2602.01601, section 5.1 and Algorithm 1. Symbols of
the paper used here: g the latent value, p = sigmoid(g), m the posterior mean of g, eps the clipping of observed rates
(``clip``). Lines 7 to 12, the update of m, are in ``latent``.

Note: the paper does not give eps. 0.05 is our choice.
Note: the paper takes the logit of an observed rate for exact, though a few rollouts tell it badly; the default keeps to
that. ``noise`` = 1 takes most of the harm out of VIP's allocation in benchmarks/moments.
Note: a prompt with no verified rollout has no rate, and is left out of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apportion.predictors.base import check_clip, check_positive, observations
from apportion.predictors.latent import LatentProcess
from apportion.types import Batch, Belief, Floats, Prompt

LARGEST_LOGIT = 36.0


def sigmoid(g: Floats) -> Floats:
    """The probability of a latent value, elementwise, strictly between 0 and 1: beyond +-36 it is that of +-36."""
    probability: Floats = 1 / (1 + np.exp(-np.clip(g, -LARGEST_LOGIT, LARGEST_LOGIT)))
    return probability


def logit(p: Floats) -> Floats:
    """The latent value of a probability strictly between 0 and 1, elementwise.

    >>> logit(np.array([0.05, 0.5])).round(3).tolist()
    [-2.944, 0.0]
    """
    g: Floats = np.log(p) - np.log1p(-p)
    return g


@dataclass
class GaussianProcess(LatentProcess):
    """Recursive GP on prompt embeddings: Algorithm 1 of arXiv 2602.01601.

    A prompt of the latest batch is predicted at its clipped success rate, others by likeness to the observed ones;
    0.5 before the first update. Predictions lie strictly between 0 and 1.

    Args:
        embedder: gives x_q; called once for each prompt.
        bandwidth: h of the kernel; by default the median distance between the prompts known at ``prepare``, or at the
            first update where nothing was prepared, and then kept. 1.0 where all embeddings are equal.
        noise: variance of an observed latent value, in units of the prior variance; at least 1e-10.
        clip: success rates are clipped to [clip, 1 - clip] before the logit.
        strength: rollouts of evidence that the predicted belief is worth.

    >>> from apportion.predictors import PrecomputedEmbeddings
    >>> from apportion.types import Plan, Rollout
    >>> prompts = [Prompt("easy"), Prompt("much like easy"), Prompt("something else")]
    >>> predictor = GaussianProcess(PrecomputedEmbeddings.from_array(prompts, [[0.0], [0.1], [5.0]]), bandwidth=1.0)
    >>> batch = Batch.start(prompts[:1], predictor.predict(prompts[:1]))
    >>> predictor.update(batch.add(Plan([2]), [[Rollout(True), Rollout(True)]]))
    >>> predictor.predict(prompts).mean.round(2).tolist()
    [0.95, 0.95, 0.5]
    """

    clip: float = 0.05
    strength: float = 2.0

    name: ClassVar[str] = "gp"

    def __post_init__(self) -> None:
        check_clip(self, self.clip)
        check_positive(self, strength=self.strength)
        super().__post_init__()

    def predict(self, prompts: Sequence[Prompt]) -> Belief:
        return Belief.from_mean(sigmoid(self._latent(prompts)), self.strength)

    def update(self, batch: Batch) -> None:
        """One call of Algorithm 1."""
        seen = observations(batch)
        if not seen:
            return
        rows, which = self._distinct([observation.prompt for observation in seen])
        successes = np.bincount(which, [observation.successes for observation in seen])
        trials = np.bincount(which, [observation.trials for observation in seen])
        self._observe(rows, logit(np.clip(successes / trials, self.clip, 1 - self.clip)))
