"""A price in place of a batch: each prompt takes rollouts while its own gain is above what a rollout gains elsewhere.

``spend`` splits the budget of a batch: it takes the largest gains of its prompts, down to some threshold. The price is
that threshold for the whole population. It is the multiplier of the budget: the gain above which the expected number of
rollouts, over all prompts, is the budget. A prompt then needs no other prompt of its batch.

The expected spend is a sum over the beliefs about all prompts. A rule that decides after pilots (HORA) is weighed by
the probability of each outcome of the pilots under the belief, which is beta-binomial.

The budget is kept by a carry, the rollouts granted so far minus the budget of as many prompts:

- Equal gains, as in the first epoch where all beliefs are equal, go where they bring the carry closest to 0.
- The price is that of a budget which takes the carry back within ``HORIZON`` prompts. A selection that prefers prompts
  of large gains, or beliefs that are wrong, would else overspend for ever.
- The carry never leaves [-slack, slack]. A count that would leave it is cut or raised. This can always be done, because
  the budget lies between the fewest and the most rollouts of a prompt.

So after n prompts the rollouts granted differ from n times the budget by at most ``slack``.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from apportion.allocators.spending.budget import BudgetedAllocator
from apportion.predictors.saved import SavedValues
from apportion.predictors.statistics.beta_binomial import log_likelihood
from apportion.types import Batch, Belief, Floats, Prompt

MOST_CELLS = 2**18
"""Gains in the table from which the price is read. A larger population is sampled, by other prompts each time."""
MOST_WIDTH = 256
"""The most rollouts of one prompt beyond its first ones."""
HORIZON = 256
"""Prompts within which the price takes the carry back."""
SLACK_PROMPTS = 32
"""The largest carry by default, in budgets of a prompt."""
TIE = 1e-9
"""The share by which equal gains may differ."""
SMALLEST_MEAN = 1e-9


class Price:
    """The price of a rollout under ``rule``, over the beliefs about ``prompts``, and the carry of its budget.

    Args:
        rule: a rule with ``gains``, whose budget is in rollouts per prompt.
        prompts: the population, at least one.
        slack: the largest carry, in rollouts, at least 1; by default the budget of 32 prompts.

    Raises ValueError for a rule without gains or with another budget.

    >>> from apportion.allocators.vip import VIP
    >>> price = Price(VIP(rollouts_per_prompt=4.5), [Prompt("a"), Prompt("b")])
    >>> one = price.rule.start([Prompt("a")])
    >>> [price.take(one) for _ in range(6)], price.carry
    ([4, 5, 4, 5, 4, 5], 0.0)
    """

    def __init__(self, rule: BudgetedAllocator, prompts: Sequence[Prompt], slack: float | None = None) -> None:
        if not rule.priced:
            raise ValueError(f"the rule must be priced, got {rule.name}; give the stream a batch to plan it in")
        if rule.budget is not None or rule.tokens_per_prompt is not None:
            raise ValueError(
                f"the budget must be in rollouts_per_prompt under a price, got budget {rule.budget} and "
                f"tokens_per_prompt {rule.tokens_per_prompt}; set rollouts_per_prompt, or plan in batches"
            )
        if not prompts:
            raise ValueError("a price needs a population, got no prompts; give all prompts of the data set")
        self.rule = rule if rule.rollouts_per_prompt is not None else rule.with_budget(int(rule.usual_rollouts))
        self.average = float(self.rule.rollouts_per_prompt or 0)
        self.slack = SLACK_PROMPTS * self.average if slack is None else float(slack)
        if not 1 <= self.slack < math.inf:
            raise ValueError(f"slack must be at least 1 rollout and finite, got {slack}; leave it out for the default")
        self.carry = 0.0
        self._prompts, self._reads = prompts, 0
        self._width = min(self.rule.high - self.rule.least, MOST_WIDTH)
        self._table: tuple[Floats, Floats] | None = None

    def forget(self) -> None:
        """Read the price anew at the next count, because beliefs have changed."""
        self._table, self._reads = None, self._reads + 1

    def at(self, average: float) -> float:
        """Return the gain above which the population spends ``average`` rollouts a prompt; inf for the fewest."""
        gains, spent = self._population()
        place = int(np.searchsorted(spent, average - self.rule.least - TIE))
        if average <= self.rule.least or not len(gains):
            return math.inf
        return float(gains[min(place, len(gains) - 1)])

    def expected(self, price: float) -> float:
        """Return the rollouts a prompt that the population is expected to take at ``price``, without ties."""
        gains, spent = self._population()
        above = int(np.searchsorted(-gains, -price))
        return self.rule.least + (float(spent[above - 1]) if above else 0.0)

    def take(self, batch: Batch) -> int:
        """Return how many rollouts the prompt of ``batch``, a batch of one, gets in all, and put it into the carry.

        Call it once for a prompt, before its first rollout or, for a rule of several rounds, after its first ones.
        """
        gains = self.rule.gains(batch.belief, batch.successes, batch.trials, self._width)[0]
        price, first = self.at(self.average - self.carry / HORIZON), self.rule.least
        edge = TIE * abs(price) if math.isfinite(price) else 0.0
        above, tied = int((gains > price + edge).sum()), int((gains >= price - edge).sum())
        owed = self.average - self.carry
        count = min(max(first + above, round(owed)), first + tied)
        count = min(max(count, math.ceil(owed - self.slack)), math.floor(owed + self.slack))
        count = min(max(count, first), first + self._width)
        self.carry += count - self.average
        return count

    def state_dict(self) -> dict[str, Any]:
        """Return the carry and how often the price was read. The price itself follows from the beliefs."""
        return {"carry": self.carry, "reads": self._reads}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned. Raise ValueError for anything else."""
        saved = SavedValues(state, "a price", ["carry", "reads"])
        carry, reads = saved.number("carry"), saved.count("reads")
        if abs(carry) > self.slack:
            raise saved.refusal("carry", f"at most {self.slack:g}, the slack,")
        self.carry, self._reads, self._table = carry, reads, None

    def _population(self) -> tuple[Floats, Floats]:
        """Return all gains, largest first, and the rollouts a prompt beyond the first that each of them completes."""
        if self._table is None:
            belief = self.rule.start(self._sample()).belief
            pieces = [(self.rule.gains(belief, *(np.zeros(len(belief), np.int64),) * 2, self._width), np.ones(1))]
            if not self.rule.one_round:
                trials = np.full(len(belief), self.rule.least)
                pieces = [
                    (
                        self.rule.gains(belief, trials * 0 + right, trials, self._width),
                        outcome(belief, right, self.rule.least),
                    )
                    for right in range(self.rule.least + 1)
                ]
            gains = np.concatenate([found.ravel() for found, _ in pieces])
            weights = np.concatenate([np.broadcast_to(w[:, None], found.shape).ravel() for found, w in pieces])
            order = np.argsort(-gains, kind="stable")
            self._table = gains[order], np.cumsum(weights[order]) / len(belief)
        return self._table

    def _sample(self) -> Sequence[Prompt]:
        """Return all prompts, or as many as the table holds, evenly spaced. Each reading starts at another one."""
        rows = max(1, self._width) * (1 if self.rule.one_round else self.rule.least + 1)
        step = -(-len(self._prompts) * rows // MOST_CELLS)
        return self._prompts[self._reads % step :: step]


def outcome(belief: Belief, right: int, trials: int) -> Floats:
    """Return the probability [P] that ``right`` of ``trials`` rollouts are correct: beta-binomial.

    >>> [outcome(Belief.uniform(1), right, 3).round(3).tolist() for right in range(4)]
    [[0.25], [0.25], [0.25], [0.25]]
    """
    count = np.full(len(belief), float(trials))
    mean = np.clip(belief.mean, SMALLEST_MEAN, 1 - SMALLEST_MEAN)
    found = np.exp(log_likelihood(mean, belief.alpha + belief.beta, np.full(len(belief), float(right)), count))
    return math.comb(trials, right) * found
