"""Measured second moments of the gradient, in place of the theoretical p (1 - p).

With a baseline b the gradient of one rollout is (r - b) h. The score h is the gradient of its log-probability. For
rewards of 0 and 1 the second moment of the gradient is

    S = E[(r - b)^2 |h|^2] = p (1 - b)^2 m_right + (1 - p) b^2 m_wrong,

where m_right and m_wrong are the mean |h|^2 of right and of wrong rollouts. RLOO and Dr. GRPO have b = p, which gives
p (1 - p) ((1 - p) m_right + p m_wrong). VIP (arXiv 2602.01601, Assumption 4.1) assumes m_right = m_wrong, equal for all
prompts, which leaves p (1 - p). But E[h] = 0, so p E[h | right] = -(1 - p) E[h | wrong]: the mean score of failures is
p / (1 - p) times as long as that of successes. So rare failures of a nearly solved prompt can dominate the variance.

Note: |h|^2 is ``Rollout.score_norm``, which engines set from log-probabilities (``sampled_score_norm``). That is a
proxy: the allocation needs the norm with respect to the parameters, up to one common factor.
Note: S is a second moment, not a variance: the square of the mean gradient is not subtracted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from apportion.checks import check_choice, check_numbers, check_positive
from apportion.predictors.base import Predictor
from apportion.predictors.saved import SavedValues
from apportion.predictors.score_norms import score_norm
from apportion.predictors.statistics.pooled import PooledSums
from apportion.types import Batch, Belief, Floats, Needs, Prompt

HistoryBaseline = Literal["success", "optimal"]
LEAST_SHARE = 1e-6


def second_moment(success: Floats, baseline: Floats, right: Floats, wrong: Floats) -> Floats:
    """Return E[(r - b)^2 |h|^2], [P]; ``right`` and ``wrong`` [P] are the mean |h|^2 of right and wrong rollouts.

    >>> second_moment(np.array([0.5, 0.9]), np.array([0.5, 0.9]), np.array([1.0, 1.0]), np.array([1.0, 9.0])).round(3)
    array([0.25 , 0.738])
    """
    return success * (1 - baseline) ** 2 * right + (1 - success) * baseline**2 * wrong


def optimal_baseline(success: Floats, right: Floats, wrong: Floats) -> Floats:
    """Return b* = E[r |h|^2] / E[|h|^2], [P], which minimises the second moment; see ``apportion.baselines``.

    >>> optimal_baseline(np.array([0.5, 0.9]), np.array([1.0, 1.0]), np.array([1.0, 9.0])).round(3)
    array([0.5, 0.5])
    """
    return success * right / (success * right + (1 - success) * wrong)


@dataclass
class ScoreMoments(Predictor):
    """Discounted counts of right and wrong rollouts and their mean |h|^2; ``Belief.variance`` is the measured S.

    Counts are as in ``DiscountedCounts``. A prompt's m_right and m_wrong are its own discounted averages, shrunk
    towards a pooled average with a weight of ``strength`` rollouts. The pooled average is over prompts whose predicted
    success before each batch was similar, within about ``bandwidth`` in log-odds, and is discounted by
    ``pool_discount`` at each batch. Before the first batch every |h|^2 is 1 and the variance is p (1 - p), so
    ``Neyman`` plans as VIP does.

    ``baseline`` is the b of S. "success" is p, for RLOO, Dr. GRPO and the ``Predicted`` baseline. "optimal" is b*, for
    the ``Optimal`` baseline; it moves the variance from nearly solved prompts to those of medium difficulty.

    Every rollout with a verdict needs a ``score_norm``, of any scale. ``update`` raises ValueError otherwise.

    Args:
        discount: factor of a prompt's earlier counts and moments at each of its batches, from 0 to 1.
        baseline: the b of S: "success" or "optimal".
        prior_alpha: right rollouts that the prior is worth.
        prior_beta: wrong rollouts that the prior is worth.
        strength: number of rollouts that the pooled moments are worth.
        bandwidth: width, in log-odds of the predicted success, of what is pooled.
        pool_discount: factor of the earlier pooled moments at each batch, from 0 to 1.

    >>> from apportion.types import Plan, Rollout
    >>> predictor, prompts = ScoreMoments(discount=1), [Prompt("a"), Prompt("b")]
    >>> rollouts = [[Rollout(True, score_norm=1.0)] * 3 + [Rollout(False, score_norm=9.0)]] * 2
    >>> predictor.update(Batch.start(prompts, predictor.predict(prompts)).add(Plan([4, 4]), rollouts))
    >>> belief = predictor.predict(prompts)
    >>> belief.mean.round(3).tolist(), belief.variance.round(3).tolist()
    ([0.7, 0.7], [1.386, 1.386])
    """

    discount: float = 0.9
    baseline: HistoryBaseline = "success"
    prior_alpha: float = 0.5
    prior_beta: float = 0.5
    strength: float = 4.0
    bandwidth: float = 1.0
    pool_discount: float = 0.98

    name: ClassVar[str] = "score_moments"
    needs: ClassVar[Needs] = Needs(binary=True, score_norms=True)

    def __post_init__(self) -> None:
        check_numbers(self)
        check_positive(self, "prior_alpha", "prior_beta", "strength", "bandwidth")
        check_choice("baseline", self.baseline, get_args(HistoryBaseline), "name the one that the estimator subtracts")
        self._sums = PooledSums(4, self.discount, self.bandwidth, self.pool_discount)

    def predict(self, prompts: Sequence[Prompt]) -> Belief:
        own = self._sums.own.of(prompt.id for prompt in prompts)
        alpha, beta = self._counts(own)
        success = alpha / (alpha + beta)
        pool, everything = self._sums.at(success), self._sums.pool.sum(0)
        usual = everything[1::2].sum() / everything[::2].sum() if everything[1::2].any() else 1.0
        counts, norms = pool[:, ::2], pool[:, 1::2]
        pooled = self.strength * np.divide(norms, counts, out=np.full_like(norms, usual), where=counts > 0)
        right, wrong = np.maximum((own[:, 1::2] + pooled) / (own[:, ::2] + self.strength), LEAST_SHARE * usual).T
        baseline = success if self.baseline == "success" else optimal_baseline(success, right, wrong)
        return Belief(alpha, beta, second_moment(success, baseline, right, wrong))

    def update(self, batch: Batch) -> None:
        seen: dict[str, Floats] = {}  # the number of right rollouts, their summed |h|^2, and the same of wrong ones
        for prompt, rollouts in zip(batch.prompts, batch.rollouts, strict=True):
            for rollout in rollouts:
                if rollout.correct is not None:
                    column = 0 if rollout.correct else 2
                    norm = score_norm(rollout, prompt, self.name)
                    seen.setdefault(prompt.id, np.zeros(4))[column : column + 2] += 1.0, norm
        if seen:
            alpha, beta = self._counts(self._sums.own.of(seen))
            self._sums.add(seen, alpha / (alpha + beta))

    def _counts(self, own: Floats) -> tuple[Floats, Floats]:
        return self.prior_alpha + own[:, 0], self.prior_beta + own[:, 2]

    def _memory(self) -> dict[str, Any]:
        return self._sums.memory()

    def _restore(self, saved: SavedValues) -> None:
        self._sums.restore(saved, low=(0, 0, 0, 0))
