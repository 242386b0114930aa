"""The baseline of least variance, from discounted sums of r |h|^2 and |h|^2.

With rewards 0 and 1, b* = E[r |h|^2] / E[|h|^2] is the success probability only if scores of right and wrong rollouts
are equally long. Above p = 1/2 failures have far longer ones, and b* lies far below p.

References: L. Weaver, N. Tao, "The Optimal Reward Baseline for Gradient-Based Reinforcement Learning", UAI 2001;
E. Greensmith, P. L. Bartlett, J. Baxter, "Variance Reduction Techniques for Gradient Estimates in Reinforcement
Learning", JMLR 5 (2004), Theorem 8 and section 3.2.
Note: if few rollouts are right, or nearly all, b* is close to 0. In benchmarks/methods it is no better
than b = 0 beyond noise on the ledger task, and better on forks; a predicted p collapsed in one ledger run of five.
Note: |h|^2 is ``Rollout.score_norm``, a proxy for the norm with respect to the parameters, which the references have:
the lab sets the norm with respect to the logits, and engines ``sampled_score_norm``, from log-probabilities.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from apportion.baselines.base import Baseline
from apportion.checks import check_choice, check_numbers, check_positive
from apportion.predictors.saved import SavedValues
from apportion.predictors.score_norms import score_norm
from apportion.predictors.statistics.per_prompt import Range, saved_range, widened
from apportion.predictors.statistics.pooled import PooledSums
from apportion.types import Batch, Floats, Needs, Prompt

Scope = Literal["constant", "curve", "prompt"]


@dataclass
class Optimal(Baseline):
    """b = b*, from discounted sums of r |h|^2 and |h|^2; 0 until the first update. Rewards of any kind.

    Args:
        scope: what has a baseline of its own. "constant" is one b* for all prompts, from the sums of all. "curve" is
            the best function of a prompt's mean reward, from the sums of all prompts whose mean reward was about the
            same beforehand. "prompt" adds the prompt's own sums to the curve's, which count as ``strength`` rollouts,
            because own sums are poor without failures: after ten successes they say 1.
        discount: of a prompt's own sums, each time that the prompt is seen.
        strength: rollouts that the curve counts as. Read by "prompt" only.
        bandwidth: mean rewards are about the same if their log-odds differ by about this. Rewards outside [0, 1] count
            as the nearer end.
        pool_discount: of the sums of all, each batch.

    The first batch sets the range of rewards, without 5% of them at either end. A batch widens it by its width at most,
    and by rewards farther out only if they are more than 5%. Rewards beyond are clipped.
    Every rollout with a reward needs a ``score_norm``, of any scale; otherwise ``update`` raises ValueError.

    >>> from apportion.types import Belief, Plan, Rollout
    >>> baseline, prompts = Optimal(), [Prompt("a")]
    >>> rollouts = [[Rollout(True, score_norm=1.0)] * 3 + [Rollout(False, score_norm=9.0)]]
    >>> baseline.update(Batch.start(prompts, Belief.uniform(1)).add(Plan([4]), rollouts))
    >>> baseline.predict(prompts).tolist()
    [0.25]
    """

    discount: float = 0.9
    strength: float = 4.0
    bandwidth: float = 1.0
    pool_discount: float = 0.98
    scope: Scope = "prompt"

    name: ClassVar[str] = "optimal"
    needs: ClassVar[Needs] = Needs(score_norms=True)
    _sums: PooledSums = field(init=False, repr=False, compare=False)
    _range: Range | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_numbers(self)
        check_positive(self, "bandwidth")
        check_choice("scope", self.scope, get_args(Scope), "prompt is the default")
        if not 0 <= self.strength < float("inf"):
            raise ValueError(f"strength must be finite and at least 0 rollouts, got {self.strength}; 0 pools nothing")
        self._sums = PooledSums(4, self.discount, self.bandwidth, self.pool_discount)

    def predict(self, prompts: Sequence[Prompt]) -> Floats:
        _, _, norms, products = self._sums_of(prompts).T
        return np.divide(products, norms, out=np.zeros(len(prompts)), where=norms > 0)

    def update(self, batch: Batch) -> None:
        rewards = [rollout.reward for row in batch.rollouts for rollout in row if rollout.reward is not None]
        if not rewards:
            return
        limits = widened(self._range, np.array(rewards))
        seen: dict[str, Floats] = {}  # the rollouts, and the sums of r, |h|^2 and r |h|^2
        for prompt, rollouts in zip(batch.prompts, batch.rollouts, strict=True):
            for rollout in rollouts:
                if rollout.reward is not None:
                    reward = min(max(rollout.reward, limits.low), limits.high)
                    norm = score_norm(rollout, prompt, self.name)
                    row = (1.0, reward, norm, reward * norm)
                    seen[prompt.id] = seen.get(prompt.id, np.zeros(4)) + row
        self._range = limits
        self._sums.add(seen, _mean_reward(self._sums.own.of(seen)))

    def _sums_of(self, prompts: Sequence[Prompt]) -> Floats:
        """Return the sums [P, 4] whose ratio is each prompt's baseline."""
        if self.scope == "constant":
            return np.tile(self._sums.pool.sum(0), (len(prompts), 1))
        own = self._sums.own.of(prompt.id for prompt in prompts)
        pool = self._sums.at(_mean_reward(own))
        if self.scope == "curve":
            return pool
        return own + self.strength * np.divide(pool, pool[:, :1], out=np.zeros_like(pool), where=pool[:, :1] > 0)

    def _memory(self) -> dict[str, Any]:
        return self._sums.memory() | {"range": self._range and list(self._range)}

    def _restore(self, saved: SavedValues) -> None:
        limits = saved_range(saved)
        self._sums.restore(saved, low=(0, -np.inf, 0, -np.inf))
        self._range = limits


def _mean_reward(own: Floats) -> Floats:
    """Return the mean reward [P] within [0, 1], as if two more rollouts had earned 0 and 1."""
    return np.clip((own[:, 1] + 1) / (own[:, 0] + 2), 0.0, 1.0)
