"""SPO's tracker: each prompt's success probability as a discounted Beta mean.

Reference: Z. Xu, Z. Ding, "Single-stream Policy Optimization", arXiv 2509.13232 (2025). Pair it with the estimator
``spo``, single rollouts (``Uniform(1)``), and prompts drawn by the weights sqrt(v (1 - v)) + .05.

Note: the paper adapts rho to how far the policy has moved, rho = 2^(-D / .06) within [.875, .96], where D is the mean
absolute change of the log-probabilities of the prompt's last response. Engines do not report D, so rho is constant
here. At the lower end, .875, it forgets as fast as the paper's ever does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from apportion.baselines.base import Baseline
from apportion.checks import check_numbers
from apportion.predictors.base import checked_rates
from apportion.predictors.saved import SavedValues
from apportion.predictors.statistics.per_prompt import by_prompt
from apportion.types import Batch, Floats, Prompt

OFFLINE_ROLLOUTS = 8
"""Rollouts that a known rate was measured by, as in the paper."""


@dataclass
class SPO(Baseline):
    """b = v = a / (a + b), the tracked success of each prompt. Rewards must be within [0, 1].

    After a rollout with reward r, a <- rho a + r and b <- rho b + 1 - r. If a batch has several rollouts of a prompt,
    a and b are discounted once for all of them.

    Args:
        rho: discount of a prompt's counts, each time that the prompt is seen; at least 0 and below 1.
        rates: known success rates by prompt id, within [0, 1], for example of 8 rollouts of the base model; by default
            those of the prompts, ``Prompt.rate``. Such a prompt starts at a = N0 (8 rate + .5) / 9 and b = N0 - a with
            N0 = 1 / (1 - rho), the weight that counts settle at. Others start at a = b = .5.

    >>> from apportion.types import Belief, Plan, Rollout
    >>> tracker, prompts = SPO(rates={"b": 0.75}), [Prompt("one"), Prompt("two", id="b")]
    >>> tracker.predict(prompts).round(3).tolist()
    [0.5, 0.722]
    >>> tracker.update(Batch.start(prompts, Belief.uniform(2)).add(Plan([1, 1]), [[Rollout(True)], [Rollout(False)]]))
    >>> tracker.predict(prompts).round(3).tolist()
    [0.767, 0.632]
    """

    rho: float = 0.875
    rates: Mapping[str, float] | None = field(default=None, repr=False, compare=False)

    name: ClassVar[str] = "spo"
    _counts: dict[str, Floats] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        check_numbers(self)
        if not 0 <= self.rho < 1:
            raise ValueError(f"rho must be at least 0 and below 1, got {self.rho}; 0.875 is the paper's")
        checked_rates(self.rates)

    @property
    def reads_rates(self) -> bool:
        return True

    def counts(self, prompts: Sequence[Prompt]) -> Floats:
        """Return a and b of each prompt, [P, 2]."""
        return np.array([self._of(prompt) for prompt in prompts]).reshape(-1, 2)

    def predict(self, prompts: Sequence[Prompt]) -> Floats:
        counts = self.counts(prompts)
        return counts[:, 0] / counts.sum(1)

    def update(self, batch: Batch) -> None:
        new: dict[str, Floats] = {}
        for id, (prompt, rewards) in by_prompt(batch, lambda rollout: rollout.reward).items():
            if bad := [reward for reward in rewards if not 0 <= reward <= 1]:
                raise ValueError(
                    f"rewards must be within [0, 1] for {self.name}, got {bad[0]} for prompt {prompt.text!r}; "
                    "rescale them, or use the baseline predicted"
                )
            new[id] = self.rho * self._of(prompt) + [sum(rewards), sum(1 - reward for reward in rewards)]
        self._counts |= new

    def _of(self, prompt: Prompt) -> Floats:
        """Return a and b of one prompt."""
        if prompt.id in self._counts:
            return self._counts[prompt.id]
        rate = (self.rates or {}).get(prompt.id, prompt.rate)
        if rate is None:
            return np.full(2, 0.5)
        success = (OFFLINE_ROLLOUTS * rate + 0.5) / (OFFLINE_ROLLOUTS + 1)
        return np.array([success, 1 - success]) / (1 - self.rho)

    def _memory(self) -> dict[str, Any]:
        return {"counts": {id: counts.tolist() for id, counts in self._counts.items()}}

    def _restore(self, saved: SavedValues) -> None:
        counts = saved.by_prompt("counts", low=(0, 0))
        if any(each.sum() == 0 for each in counts.values()):
            raise saved.refusal("counts", "two numbers by prompt id, not both 0")
        self._counts = counts
