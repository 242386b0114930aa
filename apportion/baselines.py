"""Baselines from history: values to subtract from rewards, fixed before the rollouts are sampled.

The advantage r - b needs no other rollout of the prompt, so a group of one is enough. Because b does not depend on the
rollout, the gradient is unbiased for any b: E[h] = 0 for the score h. b only changes the variance, which is smallest at

    b* = E[r |h|^2] / E[|h|^2].

With rewards 0 and 1 that is the success probability only if scores of right and wrong rollouts are equally long. Above
p = 1/2 failures have far longer ones, and b* lies far below p.

References: L. Weaver, N. Tao, "The Optimal Reward Baseline for Gradient-Based Reinforcement Learning", UAI 2001;
E. Greensmith, P. L. Bartlett, J. Baxter, "Variance Reduction Techniques for Gradient Estimates in Reinforcement
Learning", JMLR 5 (2004), Theorem 8 and section 3.2.
Note: if few rollouts are right, or nearly all, b* is close to 0. In benchmarks/methods it is no better
than b = 0 beyond noise on the ledger task, and better on forks; a predicted p collapsed in one ledger run of five.
Note: |h|^2 is ``Rollout.score_norm``, usually of the score with respect to the logits. It costs nothing when sampling
and is a proxy for the score with respect to the parameters, which the references have.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from apportion.checks import check_numbers
from apportion.predictors import EmpiricalBayes, Predictor
from apportion.predictors.base import check_source
from apportion.predictors.saved import SavedValues
from apportion.predictors.score_moments import score_norm
from apportion.predictors.statistics.pooled import PooledSums
from apportion.types import Batch, Floats, Needs, Prompt


class Baseline(ABC):
    """Predicts each prompt's reward from earlier batches alone, for an estimator that subtracts it.

    Call ``predict`` before the batch is sampled and ``update`` after it was trained on; otherwise the gradient is
    biased. Subclasses are dataclasses, whose fields are their settings; learnt state is not compared.
    """

    name: ClassVar[str]

    @property
    def needs(self) -> Needs:
        """What this baseline needs to know of each rollout."""
        return Needs()

    def prepare(self, prompts: Sequence[Prompt]) -> None:  # noqa: B027 - a hook, empty by default
        """Announce prompts before training. Optional, often faster."""

    @abstractmethod
    def predict(self, prompts: Sequence[Prompt]) -> Floats:
        """Return the baseline [P] of ``prompts``, known or not; P may be 0. It never changes a later prediction."""

    @abstractmethod
    def update(self, batch: Batch) -> None:
        """Learn from a finished batch. Prompts without a verified rollout are ignored."""

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of all that was learnt, as plain Python and numpy values."""
        return {"baseline": self.name, **copy.deepcopy(self._memory())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a copy of ``state``. Raise ValueError for the state of another baseline."""
        check_source(state, "baseline", self.name)
        self._remember(SavedValues(copy.deepcopy(state), self.name, ["baseline", *self._memory()]))

    def _memory(self) -> dict[str, Any]:
        """Return what was learnt, by name."""
        return {}

    def _remember(self, saved: SavedValues) -> None:  # noqa: B027 - a hook, empty by default
        """Restore what ``_memory`` returned. Raise ValueError for anything else."""


@dataclass
class Zero(Baseline):
    """b = 0: plain REINFORCE, the control for the others. With rewards 0 and 1 only successes change the policy.

    >>> Zero().predict([Prompt("a"), Prompt("b")]).tolist()
    [0.0, 0.0]
    """

    name: ClassVar[str] = "zero"

    def predict(self, prompts: Sequence[Prompt]) -> Floats:
        return np.zeros(len(prompts))

    def update(self, batch: Batch) -> None:
        """Do nothing, because the baseline is fixed."""


@dataclass
class Predicted(Baseline):
    """b = p, the expected reward that ``predictor`` predicts.

    ``update`` trains the predictor, so do not share it with an allocator. By default it learns from each prompt's own
    rewards and those of all, binary or graded.

    >>> Predicted().predict([Prompt("never seen")]).tolist()
    [0.5]
    """

    predictor: Predictor = field(default_factory=EmpiricalBayes)

    name: ClassVar[str] = "predicted"

    @property
    def needs(self) -> Needs:
        return self.predictor.needs

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        self.predictor.prepare(prompts)

    def predict(self, prompts: Sequence[Prompt]) -> Floats:
        return self.predictor.expected_rewards(prompts)

    def update(self, batch: Batch) -> None:
        self.predictor.update(batch)

    def _memory(self) -> dict[str, Any]:
        return {"predictor": self.predictor.state_dict()}

    def _remember(self, saved: SavedValues) -> None:
        self.predictor.load_state_dict(saved.state("predictor"))


@dataclass
class Optimal(Baseline):
    """b = b*, from discounted sums of r |h|^2 and |h|^2 by prompt id; 0 until the first update. Rewards of any kind.

    A prompt's own sums are poor without failures: after ten successes they say 1. They are therefore shrunk towards the
    sums of all prompts whose mean reward was about the same beforehand. These weigh as much as ``strength`` rollouts
    and give the best baseline that is a function of the mean reward. A prompt's own sums are discounted by
    ``discount`` each time that it is seen, the pooled ones by ``pool_discount`` each batch. Mean rewards are about the
    same if their log-odds differ by about ``bandwidth``; rewards outside [0, 1] count as the nearer end.

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

    name: ClassVar[str] = "optimal"
    needs: ClassVar[Needs] = Needs(score_norms=True)
    _sums: PooledSums = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_numbers(self)
        if not 0 <= self.strength < float("inf"):
            raise ValueError(f"strength must be finite and at least 0 rollouts, got {self.strength}; 0 pools nothing")
        self._sums = PooledSums(4, self.discount, self.bandwidth, self.pool_discount)

    def predict(self, prompts: Sequence[Prompt]) -> Floats:
        own = self._sums.own([prompt.id for prompt in prompts])
        pool = self._sums.pool.at(_mean_reward(own))
        pooled = np.divide(pool, pool[:, :1], out=np.zeros_like(pool), where=pool[:, :1] > 0)
        _, _, norms, products = (own + self.strength * pooled).T
        return np.divide(products, norms, out=np.zeros(len(own)), where=norms > 0)

    def update(self, batch: Batch) -> None:
        seen: dict[str, Floats] = {}  # the rollouts, and the sums of r, |h|^2 and r |h|^2
        for prompt, rollouts in zip(batch.prompts, batch.rollouts, strict=True):
            for rollout in rollouts:
                if rollout.reward is not None:
                    norm = score_norm(rollout, prompt, self.name)
                    row = (1.0, rollout.reward, norm, rollout.reward * norm)
                    seen[prompt.id] = seen.get(prompt.id, np.zeros(4)) + row
        if seen:
            self._sums.add(seen, _mean_reward(self._sums.own(list(seen))))

    def _memory(self) -> dict[str, Any]:
        return self._sums.memory()

    def _remember(self, saved: SavedValues) -> None:
        self._sums.restore(saved, low=(0, -np.inf, 0, -np.inf))


BASELINES: dict[str, type[Baseline]] = {baseline.name: baseline for baseline in (Zero, Predicted, Optimal)}


def _mean_reward(own: Floats) -> Floats:
    """Return the mean reward [P] within [0, 1], as if two more rollouts had earned 0 and 1."""
    return np.clip((own[:, 1] + 1) / (own[:, 0] + 2), 0.0, 1.0)
