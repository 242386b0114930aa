"""A Gaussian process over prompt embeddings: prompts similar to those that failed are expected to fail.

Reference: H. T. Nguyen, B. Nguyen, W. Ma, Y. Zhao, R. She, V. A. Nguyen, "Adaptive Rollout Allocation for Online
Reinforcement Learning with Verifiable Rewards", 2026, arXiv 2602.01601, section 5.1 and Algorithm 1. Symbols of
the paper used here: g the latent value, p = sigmoid(g), m the posterior mean of g, eps the clipping of observed rates
(``clip``). The update of m, lines 7 to 12, is in ``kernels/latent.py``.

Note: the paper does not give eps. 0.05 is our choice. The authors' released code has 1e-6, a bandwidth of 0.4, a prior
mean of -1 and a noise of 1e-4 (``apportion.presets.vip_as_released``).
Note: the paper treats the logit of an observed rate as exact, although it is noisy for a few rollouts. The default
follows the paper. In benchmarks/moments, ``noise`` = 1 removes most of the harm to VIP's allocation.
Note: a prompt without verified rollouts has no rate and is left out of the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from apportion.checks import check_numbers
from apportion.predictors.base import check_clip, check_positive
from apportion.predictors.kernels.latent import LatentProcess
from apportion.predictors.statistics.beta_binomial import logit
from apportion.predictors.statistics.per_prompt import observations
from apportion.types import Batch, Belief, Floats, Prompt

LARGEST_LOGIT = 36.0


def sigmoid(g: Floats) -> Floats:
    """Return the probability of a latent value, elementwise; ``g`` is clipped to +-36, so never exactly 0 or 1."""
    return 1 / (1 + np.exp(-np.clip(g, -LARGEST_LOGIT, LARGEST_LOGIT)))


@dataclass
class GaussianProcess(LatentProcess):
    """Recursive GP on prompt embeddings: Algorithm 1 of arXiv 2602.01601.

    A prompt of the latest batch is predicted at its clipped success rate, other prompts by similarity to the observed
    ones. Before the first update every prompt gets 0.5. Predictions lie strictly between 0 and 1.

    Args:
        embedder: gives x_q; called once for each prompt.
        bandwidth: h of the kernel; by default the median distance between the prompts known at ``prepare``, or at the
            first update if nothing was prepared, and constant from then on. It is 1.0 if all embeddings are equal.
        noise: variance of an observed latent value, in units of the prior variance; at least 1e-10.
        clip: success rates are clipped to [clip, 1 - clip] before the logit.
        strength: rollouts of evidence that the predicted belief is worth.
        prior_mean: the latent value of a prompt that nothing is known of: 0 in the paper, which is a success of 1/2.

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
    prior_mean: float = 0.0

    name: ClassVar[str] = "gp"

    def __post_init__(self) -> None:
        check_numbers(self)
        check_clip(self, self.clip)
        check_positive(self, strength=self.strength)
        if not abs(self.prior_mean) < LARGEST_LOGIT:
            raise ValueError(
                f"prior_mean must be a log-odds within {LARGEST_LOGIT} of 0, got {self.prior_mean}; 0 is the paper's"
            )
        super().__post_init__()

    def predict(self, prompts: Sequence[Prompt]) -> Belief:
        return Belief.from_mean(sigmoid(self.prior_mean + self._latent(prompts)), self.strength)

    def _completed(self, state: dict[str, Any]) -> dict[str, Any]:
        """Version 0.2.0 had the paper's prior mean."""
        settings = state.get("settings")
        if isinstance(settings, dict) and settings.keys() == self._settings().keys() - {"prior_mean"}:
            state["settings"] = {**settings, "prior_mean": 0.0}
        return state

    def update(self, batch: Batch) -> None:
        """Run Algorithm 1 once."""
        if not (seen := observations(batch)):
            return
        rows, rates = self._pooled(seen)
        self._observe(rows, logit(np.clip(rates, self.clip, 1 - self.clip)) - self.prior_mean)
