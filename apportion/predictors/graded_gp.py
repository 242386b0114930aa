"""A Gaussian process over prompt embeddings that predicts the variance of a prompt's graded rewards.

Reference: H. T. Nguyen, B. Nguyen, W. Ma, Y. Zhao, R. She, V. A. Nguyen, "Adaptive Rollout Allocation for Online
Reinforcement Learning with Verifiable Rewards", 2026, arXiv 2602.01601, Appendix E.2: Algorithm 1 with another link.
Symbols of the paper used here: g the latent value, v the variance of a prompt's reward, s^2 its sample variance, m the
posterior mean of g. The update of m is in ``kernels/latent.py``.

Note: the paper has v = softplus(g), so a prompt unlike any other has v = log 2 whatever the rewards are, although v is
at most 1/4 for rewards in [0, 1]. Here v = S softplus(g), and S makes g = 0 the discounted mean of the sample variances
seen so far. So g compares a prompt with the others, a prompt not seen lately changes with the others, and the unit of
the rewards does not change g. ``scale = 1`` is the paper's link.
Note: every prompt has the same weight in that mean, because prompts with a large variance get more rollouts.
Note: g is -inf at s^2 = 0, which happens by chance with few rollouts. So s^2 is raised to at least ``floor`` times the
variance at g = 0. The default gives g = -3.3, similar to a success rate clipped to 0.05.
Note: log(exp(s^2) - 1) overflows from s^2 = 710 on. An equivalent formula that does not overflow is used.
Note: the paper has no noise on the observed g, but the s^2 of a few rewards is noisier than their mean. Between close
prompts an exact interpolation overshoots, which in a few dimensions may cost VIP more than it gains. ``noise`` models
it. 0.1 is our choice, and values from 0.01 to 1 do about as well.
Note: one rollout has no sample variance. A prompt with fewer than two rewards is left out of the batch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from apportion.checks import check_numbers
from apportion.predictors.base import check_discount, check_positive
from apportion.predictors.kernels.latent import LatentProcess
from apportion.predictors.saved import SavedValues
from apportion.predictors.statistics.per_prompt import Range, saved_range, spreads
from apportion.types import Batch, Belief, Floats, Needs, Prompt

SOFTPLUS_OF_0 = math.log(2)
LOWEST_LATENT = -36.0


def softplus(g: Floats) -> Floats:
    """Return log(1 + exp(g)), elementwise, for any g.

    >>> softplus(np.array([-1000.0, 0.0, 1000.0])).round(3).tolist()
    [0.0, 0.693, 1000.0]
    """
    return np.logaddexp(0.0, g)


def inverse_softplus(v: Floats) -> Floats:
    """Return log(exp(v) - 1), elementwise, for any v above 0."""
    return v + np.log(-np.expm1(-v))


@dataclass
class GradedGaussianProcess(LatentProcess):
    """Recursive GP on prompt embeddings for rewards of any size: Appendix E.2 of arXiv 2602.01601.

    A prompt of the latest batch is predicted at the sample variance of its rewards, other prompts by similarity to the
    observed ones. Before the first update all predictions are equal. Variances are above 0. It does not predict
    success: the mean of its beliefs is always 0.5. So it suits allocators that read only the variance, such as VIP.
    After the first batch the range of rewards grows by its width to either side at most; rewards beyond are clipped.

    Args:
        embedder: gives x_q; called once for each prompt.
        bandwidth: h of the kernel; by default the median distance between the prompts known at ``prepare``, or at the
            first update if nothing was prepared, and constant from then on. It is 1.0 if all embeddings are equal.
        noise: variance of an observed g, in units of its prior variance; at least 1e-10.
        floor: lower bound of a sample variance, as a share of the variance predicted for a prompt unlike any other.
        scale: S, in units of the reward squared; by default from the observed variances, and 1 before the first.
        discount: factor at each update on the earlier variances in S; 1 keeps all, 0 only those of the latest batch.

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
    added: ClassVar[Mapping[str, Any]] = {"range": None}  # the next batch sets it
    needs: ClassVar[Needs] = Needs()

    def __post_init__(self) -> None:
        check_numbers(self)
        if not 0 < self.floor < 1:
            raise ValueError(
                f"floor must be above 0 and below 1 for {self.name!r}, got {self.floor}; leave it out for the default"
            )
        if self.scale is not None:
            check_positive(self, scale=self.scale)
        check_discount(self.discount)
        super().__post_init__()
        self._variances = self._observed = 0.0
        self._range: Range | None = None

    def predict(self, prompts: Sequence[Prompt]) -> Belief:
        variance = self._scale * softplus(np.maximum(self._latent(prompts), LOWEST_LATENT))
        return Belief(np.ones(len(prompts)), np.ones(len(prompts)), variance)

    def update(self, batch: Batch) -> None:
        """Update S, then run Algorithm 1 once."""
        seen, self._range = spreads(batch, self._range)
        if not seen:
            return
        rows, variances = self._pooled(seen)
        self._variances = self.discount * self._variances + sum(spread.variance for spread in seen)
        self._observed = self.discount * self._observed + len(seen)
        self._observe(rows, inverse_softplus(np.maximum(variances / self._scale, self.floor * SOFTPLUS_OF_0)))

    @property
    def _scale(self) -> float:
        if self.scale is not None:
            return self.scale
        return self._variances / self._observed / SOFTPLUS_OF_0 if self._variances else 1.0

    def _memory(self) -> dict[str, Any]:
        learned = {"variances": self._variances, "observed": self._observed}
        return super()._memory() | learned | {"range": self._range and list(self._range)}

    def _restore(self, saved: SavedValues) -> None:
        variances, observed = saved.number("variances", low=0), saved.number("observed", low=0)
        if variances and not observed:
            raise saved.refusal("variances", "0 before the first is observed")
        limits = saved_range(saved)
        super()._restore(saved)
        self._variances, self._observed, self._range = variances, observed, limits
