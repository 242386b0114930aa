"""Rules that HORA is compared with. They draw its pre-rollouts and deal the rest of the budget in other ways."""

from dataclasses import dataclass

import numpy as np

from apportion.allocators import HORA
from apportion.allocators.spending.solver import spend
from apportion.types import Plan


@dataclass(frozen=True, kw_only=True)
class RandomPrompts(HORA):
    """HORA's extra rollouts, dealt to random prompts: the control for which prompts get them."""

    def plan(self, batch):
        plan = super().plan(batch)
        if not batch.round:
            return plan
        rng = np.random.default_rng([len(batch.prompts), *batch.successes])
        return Plan(rng.permutation(plan.counts))


@dataclass(frozen=True, kw_only=True)
class Hardest(HORA):
    """The rest goes evenly to the prompts with the fewest right pre-rollouts, up to ``high`` each, then to the next."""

    def plan(self, batch):
        plan = super().plan(batch)
        if not batch.round or not plan:
            return plan
        extra = np.arange(self._width(batch, batch.asked))
        gains = -batch.successes[:, None] - extra / (1 + len(extra))  # a right one outweighs all rollouts of a prompt
        gains[batch.asked[:, None] + 1 + extra > self.high] = -np.inf
        return Plan(spend(gains, self._total(len(batch.prompts)), batch.asked) - batch.asked)
