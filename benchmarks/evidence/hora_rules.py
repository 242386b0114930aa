"""Rules that HORA is compared with. They draw its pre-rollouts and deal the rest of the budget in other ways."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from apportion.allocators import HORA
from apportion.allocators.hora import clipped_prior, gains_beyond
from apportion.allocators.spending.solver import spend
from apportion.types import Batch, Floats, Plan


@dataclass(frozen=True, kw_only=True)
class RandomPrompts(HORA):
    """HORA's extra rollouts, dealt to random prompts: the control for which prompts get them."""

    def plan(self, batch: Batch) -> Plan:
        plan = super().plan(batch)
        if not batch.round:
            return plan
        rng = np.random.default_rng([len(batch.prompts), *batch.successes])
        return Plan(rng.permutation(plan.counts))


@dataclass(frozen=True, kw_only=True)
class Hardest(HORA):
    """The rest goes evenly to the prompts with the fewest right pre-rollouts, up to ``high`` each, then to the next."""

    def plan(self, batch: Batch) -> Plan:
        plan = super().plan(batch)
        return plan if not batch.round or not plan else self._dealt(batch)

    def _dealt(self, batch: Batch) -> Plan:
        width = self._width(batch, batch.asked)
        gains = self._worth(batch.successes.astype(float), batch.trials.astype(float), np.arange(width))
        gains[batch.asked[:, None] + 1 + np.arange(width) > self.high] = -np.inf
        return Plan(spend(gains, self._total(len(batch.prompts)), batch.asked) - batch.asked)

    def _worth(self, right: Floats, trials: Floats, extra: Floats) -> Floats:
        """Return what each further rollout is worth [P, W]: a right pre-rollout outweighs all rollouts of a prompt."""
        return -right[:, None] - extra / (1 + len(extra))


@dataclass(frozen=True, kw_only=True)
class ByFailures(Hardest):
    """The rest is dealt in proportion to each prompt's wrong pre-rollouts."""

    def _worth(self, right: Floats, trials: Floats, extra: Floats) -> Floats:
        return (trials - right)[:, None] / (extra + 0.5)


@dataclass(frozen=True, kw_only=True)
class Unhit(HORA):
    """HORA, but prompts without a right pre-rollout come first: it maximises prompts that have a right rollout at all.

    What no such prompt may have goes to the others by hit utility.
    """

    def plan(self, batch: Batch) -> Plan:
        plan = super().plan(batch)
        if not batch.round or not plan:
            return plan
        posterior = clipped_prior(batch.belief).condition(batch.successes, batch.trials)
        gains = gains_beyond(posterior, batch.asked, self.high, self._width(batch, batch.asked))
        gains[batch.successes == 0] += 1.0
        return Plan(spend(gains, self._total(len(batch.prompts)), batch.asked) - batch.asked)
