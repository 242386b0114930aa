"""Neyman allocation: a fixed budget by each prompt's measured gradient variance, for group and for fixed baselines.

Reference: J. Neyman, "On the Two Different Aspects of the Representative Method", Journal of the Royal Statistical
Society 97 (1934): a stratum gets samples in proportion to its standard deviation. Here the strata are prompts, the
samples rollouts, counts are integers with bounds, and ``spend`` finds the exact optimum.

VIP (arXiv 2602.01601) is the same problem with p (1 - p) as the variance of one rollout's gradient. Here it is
``Belief.variance``, which ``ScoreMoments`` measures. One more estimator is allowed: with a baseline fixed beforehand
(see ``apportion.baselines``) the variance from n rollouts is S / n, and groups of one are possible.

Note: the gain depends on how well S is known. With moments learnt from 4 rollouts per prompt while the policy changes
fast, benchmarks/moments finds no gain over uniform counts; with the true moments x.55 to x.77 of the variance.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from apportion.allocators.vip import VarianceAllocator, variance_drops
from apportion.predictors import Predictor, ScoreMoments
from apportion.types import Belief, Counts, Floats

NeymanEstimator = Literal["rloo", "dr_grpo", "reinforce"]
LEAST_LOW: dict[str, int] = {"rloo": 2, "dr_grpo": 3, "reinforce": 1}
"""The number of rollouts from which on the variance is finite and convex."""


def drops(estimator: str, n: Counts) -> Floats:
    """Return by how much rollout number ``n`` lowers the variance if S = 1, elementwise; it never increases with n.

    1 / (n - 1) - 1 / n for "reinforce", whose variance is 1 / n; for the others see ``vip.variance_drops``.

    >>> drops("reinforce", np.array([2, 3, 4])).round(3).tolist()
    [0.5, 0.167, 0.083]
    """
    if estimator == "reinforce":
        m = np.asarray(n, np.float64)
        return 1 / (m * (m - 1))
    return variance_drops(estimator, n)


@dataclass(frozen=True, kw_only=True)
class Neyman(VarianceAllocator):
    """Splits a fixed budget so that the summed variance of the prompts' gradients is smallest.

    Rewards as its predictor takes them, binary or graded; the default one needs binary rewards.

    Args:
        estimator: the run's advantage estimator: "rloo", "dr_grpo", or "reinforce" with a baseline fixed beforehand.
            The default is the trainer's, and "rloo" without a trainer, or if there is no formula for the trainer's.
        rollouts_per_prompt: budget per prompt, on average; by default the engine's number, or 8.
        budget: or the budget of a batch in total.
        tokens_per_prompt: or a budget in tokens per prompt, on average; a completion costs its predicted length.
        lengths: predicts the length of a completion; needed with ``tokens_per_prompt``, and only then.
        low: the fewest rollouts of one prompt: at least 2 for rloo, 3 for dr_grpo, 1 for reinforce.
        high: the most rollouts of one prompt.
        predictor: predicts the variance of one rollout's gradient, in any unit; by default from measured moments. With
            the ``Optimal`` baseline use ``ScoreMoments(baseline="optimal")``.

    >>> from apportion import Prompt
    >>> allocator = Neyman(estimator="reinforce", low=1, rollouts_per_prompt=2)
    >>> allocator.plan(allocator.start([Prompt("a"), Prompt("b")])).counts.tolist()
    [2, 2]
    """

    estimator: NeymanEstimator | None = None
    low: int = 3
    predictor: Predictor = field(default_factory=ScoreMoments)

    name: ClassVar[str] = "neyman"
    least_low: ClassVar[Mapping[str, int]] = LEAST_LOW

    def gains(self, belief: Belief, successes: Counts, trials: Counts, width: int) -> Floats:
        return belief.variance[:, None] * drops(self._minimised, np.arange(self.low + 1, self.low + 1 + width))
