"""A price in place of a batch: a prompt takes rollouts while the gain of the next one is above the price.

``spend`` splits the budget of a batch: it takes the largest gains of its prompts, down to some threshold. The price is
that threshold for the whole population. It is the multiplier of the budget: the gain above which the expected number of
rollouts, over all prompts, is the budget. A prompt then needs no other prompt of its batch.

The expected spend is a sum over the beliefs about all prompts. A rule that decides after pilots (HORA) is weighed by
the probability of each outcome of the pilots under the belief, which is beta-binomial.

The budget is kept by a carry, the rollouts granted so far minus the budget of as many prompts:

- Equal gains, as in the first epoch where all beliefs are equal, go where they bring the carry closest to 0.
- The price is that of a budget which takes the carry back within ``HORIZON`` prompts. A selection that prefers prompts
  of large gains, or beliefs that are wrong, would else overspend for ever.
- Prompts in the order of the data set, as from a loader that does not shuffle, may be sorted by difficulty. Then the
  price is that of the next ones alone: those of 12 slacks. So the slack is not spent on the first of them.
- The carry never leaves [-slack, slack]. A count that would leave it is cut or raised. This can always be done, because
  the budget lies between the fewest and the most rollouts of a prompt.

So after n prompts the rollouts granted differ from n times the budget by at most ``slack``.

A budget in tokens has a price in gain per token. A rollout then costs the predicted length of its prompt, and the carry
counts predicted tokens. Prompts so long that their fewest rollouts cost more than the budget may take the carry beyond
the slack: their rollouts are fixed. A rollout of negative gain is never taken.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from apportion.allocators.spending.budget import BudgetedAllocator
from apportion.predictors.saved import SavedValues
from apportion.predictors.statistics.beta_binomial import log_likelihood
from apportion.types import Batch, Belief, Floats, Plan, Prompt

MOST_CELLS = 2**18
"""Largest number of gains in the table from which the price is read. Larger populations are sampled."""
MOST_WIDTH = 256
"""The most rollouts of one prompt beyond its first ones."""
HORIZON = 256
"""Number of prompts over which an overspent budget is paid back."""
AHEAD = 12
"""Number of coming prompts from which the price is read, as a multiple of the slack."""
FOLLOWED, STRIDE = 32, 16
"""FOLLOWED prompts in the order of the data set switch to the price of the coming prompts, read again every STRIDE."""
SLACK_PROMPTS = 32
"""Default bound on overspending, in budgets of one prompt."""
TIE = 1e-9
"""Relative difference up to which two gains count as equal."""
SMALLEST_MEAN = 1e-9


class Price:
    """The price of one more rollout under ``rule``, and the rollouts spent beyond the budget so far (the carry).

    Args:
        rule: a rule with ``gains``, whose budget is in rollouts or in tokens per prompt.
        prompts: the population, at least one.
        slack: the largest carry, in the unit of the budget, at least 1; by default the budget of 32 prompts.

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
        if rule.budget is not None:
            raise ValueError(
                f"the budget must be that of a prompt under a price, got budget {rule.budget} for a batch; set "
                "rollouts_per_prompt or tokens_per_prompt, or plan in batches"
            )
        if not prompts:
            raise ValueError("a price needs a population, got no prompts; give all prompts of the data set")
        self.rule = rule.with_budget(int(rule.usual_rollouts))  # a rule with a budget keeps it
        self.average = float(self.rule.rollouts_per_prompt or self.rule.tokens_per_prompt or 0)
        self.slack = SLACK_PROMPTS * self.average if slack is None else float(slack)
        if not 1 <= self.slack < math.inf:
            raise ValueError(f"slack must be at least 1 and finite, got {slack}; leave it out for the default")
        self.carry = 0.0
        self._prompts, self._reads = prompts, 0
        self._place_of = {prompt.id: place for place, prompt in enumerate(prompts)}
        self._ahead = max(HORIZON, round(AHEAD * self.slack / self.average))
        self._next = self._followed = 0  # the place after the latest prompt, and how many came in order
        self._width = min(self.rule.high - self.rule.least, MOST_WIDTH)
        self._table: tuple[Floats, Floats] | None = None
        # the population's values at the latest reading of the price
        self._base, self._cost = float(self.rule.least), 1.0

    @property
    def rows(self) -> float:
        """The rollouts that a prompt is expected to get."""
        self._population()
        return max(float(self.rule.least), self.average / self._cost)

    def start(self, prompts: Sequence[Prompt]) -> Batch:
        """Return an empty batch of ``prompts``, whatever they cost; under a budget in tokens with its costs."""
        lengths = self.rule.lengths
        return Batch.start(
            prompts, self.rule.predictor.predict(prompts), None if lengths is None else lengths.predict(prompts)
        )

    def forget(self) -> None:
        """Read the price anew at the next count, because beliefs have changed."""
        self._table, self._reads = None, self._reads + 1

    def at(self, average: float) -> float:
        """Return the gain (per token) above which the population spends ``average`` a prompt; inf for the fewest."""
        gains, spent = self._population()
        place = int(np.searchsorted(spent, average - self._base - TIE))
        if average <= self._base or not len(gains):
            return math.inf
        return float(gains[min(place, len(gains) - 1)])

    def take(self, batch: Batch) -> int:
        """Return how many rollouts the prompt of ``batch``, a batch of one, gets in all, and put it into the carry.

        Call it once for a prompt, before its first rollout or, for a rule of several rounds, after its first ones.
        """
        self._follow(batch.prompts[0].id)
        cost = float(batch.costs[0])
        gains = self.rule.gains(batch.belief, batch.successes, batch.trials, self._width)[0] / cost
        gains = gains[gains >= self._floor]
        price, first = self.at(self.average - self.carry / HORIZON), self.rule.least
        edge = TIE * abs(price) if math.isfinite(price) else 0.0
        above, tied = int((gains > price + edge).sum()), int((gains >= price - edge).sum())
        owed = self.average - self.carry
        count = min(max(first + above, round(owed / cost)), first + tied)
        count = min(max(count, math.ceil((owed - self.slack) / cost)), math.floor((owed + self.slack) / cost))
        count = min(max(count, first), first + len(gains))
        self.carry += count * cost - self.average
        return count

    def decided(self, batch: Batch) -> bool:
        """Return whether the count of this prompt was decided by now, or is decided in the next round."""
        return batch.round >= (self._pilots > 0)

    def plan(self, batch: Batch, granted: int | None = None) -> Plan:
        """Return the next round of the prompt of ``batch``, a batch of one. Call it once a round.

        ``granted`` is the count that it had before it was withdrawn, which the carry has already.
        """
        if not self.decided(batch):
            return Plan(np.array([self._pilots]))
        if batch.round > (self._pilots > 0):
            return Plan(np.zeros(1, np.int64))
        return Plan(np.array([(self.take(batch) if granted is None else granted) - int(batch.asked[0])]))

    def state_dict(self) -> dict[str, Any]:
        """Return the carry and the prompts from which the price was read. The price itself follows from the beliefs."""
        return {"carry": self.carry, "reads": self._reads, "next": self._next, "followed": self._followed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned. Raise ValueError for anything else."""
        begun = {"next": 0, "followed": 0}  # states of 0.3.0 lack these
        saved = SavedValues({**begun, **state} if isinstance(state, Mapping) else state, "a price", self.state_dict())
        carry, reads, place, followed = saved.number("carry"), *map(saved.count, ("reads", "next", "followed"))
        if abs(carry) > self.slack and self.rule.lengths is None:
            raise saved.refusal("carry", f"at most {self.slack:g}, the slack,")
        self.carry, self._reads, self._table = carry, reads, None
        self._next, self._followed = place, followed

    def _population(self) -> tuple[Floats, Floats]:
        """Return all gains, largest first, and what a prompt spends beyond its first rollouts if each is the price."""
        if self._table is None:
            batch = self.start(self._sample())
            belief, costs = batch.belief, batch.costs
            self._base, self._cost = self.rule.least * float(costs.mean()), float(costs.mean())
            trials, shape = self._pilots, (len(belief), self._width)
            gains, spent = [], []
            for right in range(trials + 1):
                outcomes = np.full(len(belief), right), np.full(len(belief), trials)
                found = self.rule.gains(belief, outcomes[0], outcomes[1], self._width)
                gains.append(found / costs[:, None])
                spent.append(np.broadcast_to((outcome(belief, right, trials) * costs)[:, None], shape))
            table = np.stack([np.ravel(gains), np.ravel(spent)])
            table = table[:, table[0] >= self._floor]
            table = table[:, np.argsort(-table[0], kind="stable")]
            self._table = table[0], np.cumsum(table[1]) / len(belief)
        return self._table

    @property
    def _pilots(self) -> int:
        """How many rollouts a prompt gets before their outcomes decide its count: none for a rule of one round."""
        return 0 if self.rule.one_round else self.rule.least

    @property
    def _floor(self) -> float:
        """The least gain that a rollout must have to be taken. A budget in rollouts is always spent in full."""
        return -math.inf if self.rule.lengths is None else 0.0

    def _sample(self) -> Sequence[Prompt]:
        """Return the prompts from which the price is read: all or the coming ones, evenly thinned to fit the table.

        Each reading starts at another one.
        """
        some, first, total = self._prompts, self._first, len(self._prompts)
        if first is not None:
            some = [self._prompts[place % total] for place in range(first, first + self._ahead)]
        rows = max(1, self._width) * (self._pilots + 1)
        step = -(-len(some) * rows // MOST_CELLS)
        return some[self._reads % step :: step]

    @property
    def _first(self) -> int | None:
        """The index of the first of the coming prompts; None if prompts do not come in the order of the data set."""
        known = len(self._prompts) > self._ahead and self._followed >= FOLLOWED
        return (self._next - 1) // STRIDE * STRIDE if known else None

    def _follow(self, id: str) -> None:
        """Update how many prompts in a row came in the order of the data set, given the ``id`` of the newest."""
        first, place = self._first, self._place_of.get(id)
        if place is None or (place - self._next) % len(self._prompts) >= HORIZON:
            self._followed = 0
        else:
            self._followed, self._next = self._followed + 1, place + 1
        if self._first != first:
            self._table = None


def outcome(belief: Belief, right: int, trials: int) -> Floats:
    """Return the probability [P] that ``right`` of ``trials`` rollouts are correct: beta-binomial.

    >>> [outcome(Belief.uniform(1), right, 3).round(3).tolist() for right in range(4)]
    [[0.25], [0.25], [0.25], [0.25]]
    """
    count = np.full(len(belief), float(trials))
    mean = np.clip(belief.mean, SMALLEST_MEAN, 1 - SMALLEST_MEAN)
    found = np.exp(log_likelihood(mean, belief.alpha + belief.beta, np.full(len(belief), float(right)), count))
    return math.comb(trials, right) * found
