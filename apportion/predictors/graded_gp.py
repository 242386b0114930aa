"""A Gaussian process over prompt embeddings for graded rewards: it predicts the variance of a prompt's reward.

Reference: H. T. Nguyen, B. Nguyen, W. Ma, Y. Zhao, R. She, V. A. Nguyen, "Adaptive Rollout Allocation for Online
Reinforcement Learning with Verifiable Rewards", 2026, arXiv 2602.01601, Appendix E.2: Algorithm 1 with another link.
Symbols of the paper used here: g the latent value, v the variance of a prompt's reward, s^2 its sample variance, m the
posterior mean of g. The update of m is in ``latent``.

Note: the paper has v = softplus(g), so that a prompt like none before has v = log 2 whatever the rewards are; where
they lie in [0, 1], v is at most 1/4. Here v = S softplus(g): S is such that g = 0 means the mean of the sample
variances seen so far, the older the less. So g says how a prompt compares with the others, one that was not seen lately
is taken to have moved with them, and rewards in other units give the same g. ``scale = 1`` is the paper's link.
Note: every prompt counts the same in that mean, however many rollouts it got: those with a large variance get more.
Note: g is -inf at s^2 = 0, which a few rollouts give by chance. s^2 counts as at least ``floor`` of the variance at g =
0; the default puts g at -3.3, about where success rates clipped to 0.05 put it.
Note: log(exp(s^2) - 1) overflows from s^2 = 710 on; the same number is computed without.
Note: the paper has no noise on the observed g, and the s^2 of a few rewards is noisier than their mean: between close
prompts an exact interpolation overshoots, which in a few dimensions may cost VIP more than it gains. ``noise`` is that
noise: 0.1 is our choice, and anything from 0.01 to 1 does about as well.
Note: one rollout has no sample variance. A prompt with fewer than two rewards is left out of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from apportion.predictors.base import check_discount, check_positive
from apportion.predictors.latent import LatentProcess
from apportion.predictors.spread import spreads
from apportion.types import Batch, Belief, Floats, Prompt

SOFTPLUS_OF_0 = math.log(2)
LOWEST_LATENT = -36.0


def softplus(g: Floats) -> Floats:
    """log(1 + exp(g)), elementwise, for any g.

    >>> softplus(np.array([-1000.0, 0.0, 1000.0])).round(3).tolist()
    [0.0, 0.693, 1000.0]
    """
    v: Floats = np.logaddexp(0.0, g)
    return v


def inverse_softplus(v: Floats) -> Floats:
    """log(exp(v) - 1), elementwise, for any v above 0."""
    g: Floats = v + np.log(-np.expm1(-v))
    return g


@dataclass
class GradedGaussianProcess(LatentProcess):
    """Recursive GP on prompt embeddings for rewards of any size: Appendix E.2 of arXiv 2602.01601.

    A prompt of the latest batch is predicted at the sample variance of its rewards, others by likeness to the observed
    ones; all alike before the first update. Variances are above 0. It says nothing of success: the mean of its beliefs
    is 0.5 throughout, so it is for allocators that read the variance alone, such as VIP.

    Args:
        embedder: gives x_q; called once for each prompt.
        bandwidth: h of the kernel; by default the median distance between the prompts known at ``prepare``, or at the
            first update where nothing was prepared, and then kept. 1.0 where all embeddings are equal.
        noise: variance of an observed g, in units of its prior variance; at least 1e-10.
        floor: smallest sample variance that is believed, as a share of what a prompt like none before is given.
        scale: S, in units of the reward squared; by default from the observed variances, and 1 before the first.
        discount: of the variances that S is computed from, at each update: 1 keeps all, 0 only the last batch's.

    >>> from apportion.predictors import PrecomputedEmbeddings
    >>> from apportion.types import Plan, Rollout
    >>> prompts = [Prompt("spread"), Prompt("much like it"), Prompt("flat"), Prompt("something else")]
    >>> x = [[0.0], [0.1], [5.0], [20.0]]
    >>> predictor = GradedGaussianProcess(PrecomputedEmbeddings.from_array(prompts, x), bandwidth=1.0)
    >>> rewards = [[0.0, 0.5, 1.0], [], [0.5, 0.7, 0.6], []]
    >>> batch = Batch.start(prompts, predictor.predict(prompts)).add(
    ...     Plan([3, 0, 3, 0]), [[Rollout(reward=reward) for reward in group] for group in rewards]
    ... )
    >>> predictor.update(batch)
    >>> predictor.predict(prompts).variance.round(3).tolist()
    [0.25, 0.237, 0.01, 0.13]
    """

    noise: float = 0.1
    floor: float = 0.05
    scale: float | None = None
    discount: float = 0.9

    name: ClassVar[str] = "graded_gp"
    _variances: float = field(default=0.0, init=False, repr=False, compare=False)
    _observed: float = field(default=0.0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 < self.floor < 1:
            raise ValueError(
                f"floor must be above 0 and below 1 for {self.name!r}, got {self.floor}; leave it out for the default"
            )
        if self.scale is not None:
            check_positive(self, scale=self.scale)
        check_discount(self.discount)
        super().__post_init__()

    @property
    def needs_binary(self) -> bool:
        return False

    def predict(self, prompts: Sequence[Prompt]) -> Belief:
        variance = self._scale * softplus(np.maximum(self._latent(prompts), LOWEST_LATENT))
        return Belief(np.ones(len(prompts)), np.ones(len(prompts)), variance)

    def update(self, batch: Batch) -> None:
        """One call of Algorithm 1, after S has been brought up to date."""
        seen = spreads(batch)
        if not seen:
            return
        rows, which = self._distinct([spread.prompt for spread in seen])
        squares = np.bincount(which, [spread.squares for spread in seen])
        freedom = np.bincount(which, [spread.freedom for spread in seen])
        self._variances = self.discount * self._variances + sum(spread.variance for spread in seen)
        self._observed = self.discount * self._observed + len(seen)
        self._observe(rows, inverse_softplus(np.maximum(squares / freedom / self._scale, self.floor * SOFTPLUS_OF_0)))

    @property
    def _scale(self) -> float:
        if self.scale is not None:
            return self.scale
        return self._variances / self._observed / SOFTPLUS_OF_0 if self._variances else 1.0

    def _memory(self) -> dict[str, Any]:
        return super()._memory() | {"variances": self._variances, "observed": self._observed}

    def _remember(self, memory: dict[str, Any]) -> None:
        super()._remember(memory)
        self._variances, self._observed = memory["variances"], memory["observed"]
