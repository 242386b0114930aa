"""An engine of slots that samples all the time, simulated by events: what a stream makes of it, against other ways.

Nothing is trained. Lengths are lognormal. A part of the variance of their logarithm is the prompt's, so rollouts of a
prompt are alike. They are cut at a quantile, as ``max_response_length`` does: uncut, a few lengths decide every
figure. Time is counted in median lengths. An update takes a share of the time that the engine needs to sample one.

Lengths and verdicts depend on the seed, the prompt and the rollout only. So two streams with one seed are compared on
the same draws.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np

from apportion.checks import check_integer, check_numbers
from apportion.scheduler import Rows, Scheduler, Ticket, Update
from apportion.scheduler.unit import Unit
from apportion.types import Floats, Prompt, Rollout

DRAWS = 64
"""Draws of a prompt, after which its lengths and verdicts repeat."""
LONG_TENTH = 0.9
LENGTH = 1000
"""Tokens of the median length."""


@dataclass(frozen=True, kw_only=True)
class Slots:
    """An engine, its prompts, and its trainer.

    Args:
        slots: rollouts that are sampled at a time.
        prompts: of the data set.
        sigma: standard deviation of log lengths.
        shared: share of the variance of log lengths that is the prompt's.
        longest: quantile at which lengths are cut.
        update: the time of an update over that of sampling one with all slots.
        failing: share of samples that return nothing.
        hanging: share of samples that never return.
        seed: of all draws.

    Raises ValueError for settings that make no sense.
    """

    slots: int
    prompts: int
    sigma: float = 1.0
    shared: float = 0.5
    longest: float = 0.99
    update: float = 0.0
    failing: float = 0.0
    hanging: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_numbers(self)
        check_integer("slots", self.slots, 1, "an engine needs a slot")
        check_integer("prompts", self.prompts, 1, "a data set needs a prompt")
        shares = {"shared": self.shared, "failing": self.failing, "hanging": self.hanging}
        if bad := {name: value for name, value in shares.items() if not 0 <= value <= 1}:
            raise ValueError(f"{', '.join(bad)} must be between 0 and 1, got {bad}; they are shares")
        if not 0 < self.longest < 1 or not 0 <= self.sigma <= 5 or not 0 <= self.update < math.inf:
            raise ValueError(
                f"longest must be in (0, 1), sigma in [0, 5] and update finite and at least 0, got {self.longest}, "
                f"{self.sigma} and {self.update}; 0.99, 1 and 0.5 are usual"
            )

    @property
    def members(self) -> list[Prompt]:
        """The prompts, whose ids are their numbers."""
        return [Prompt(f"prompt {q}", id=str(q)) for q in range(self.prompts)]

    @cached_property
    def log_lengths(self) -> Floats:
        """The part of the log lengths that is the prompt's, [Q]."""
        own = self.sigma * math.sqrt(self.shared)
        return own * np.random.default_rng([self.seed, 6]).normal(0, 1, self.prompts)

    @property
    def mean_length(self) -> float:
        """The mean of the cut lengths, in closed form."""
        top = NormalDist().inv_cdf(self.longest)
        below = math.exp(self.sigma**2 / 2) * NormalDist().cdf(top - self.sigma)
        return below + (1 - self.longest) * math.exp(self.sigma * top)


@dataclass(frozen=True)
class SlotMeasures:
    """What a run of updates came to, without its first quarter, in which the engine fills.

    Args:
        utilisation: share of the time of all slots in which they sampled.
        largest_age: of any group at the start of its update, in updates.
        age: mean of it.
        long_share: share of the tenth of the prompts with the longest samples among the groups trained, over its share
            among the prompts.
        budget: rollouts granted per prompt that was opened.
        carry: the largest deviation from the budget at any time, in rollouts.
    """

    utilisation: float
    largest_age: int
    age: float
    long_share: float
    budget: float
    carry: float


def simulate_slots(engine: Slots, make: Callable[[Sequence[Prompt]], Scheduler], updates: int = 40) -> SlotMeasures:
    """Return the measures of ``updates`` updates of the stream that ``make`` returns for the prompts of ``engine``."""
    check_integer("updates", updates, 4, "the first quarter is left out")
    return _Run(engine, make(engine.members)).measures(updates)


class _Run:
    """The events of one run: rollouts that end, updates that end, and requests that run out of patience."""

    def __init__(self, engine: Slots, stream: Scheduler) -> None:
        rng = np.random.default_rng([engine.seed, 7])
        self.engine, self.stream = engine, stream
        rest = engine.sigma * math.sqrt(1 - engine.shared)
        self.log_length = engine.log_lengths
        noise = rng.normal(0, 1, (engine.prompts, DRAWS)) * rest
        cut = engine.sigma * NormalDist().inv_cdf(engine.longest)
        self.lengths = np.exp(np.minimum(self.log_length[:, None] + noise, cut)).astype(np.float32)
        self.right = rng.random((engine.prompts, DRAWS)) < rng.beta(0.4, 0.4, engine.prompts)[:, None]
        self.chance = rng.random((engine.prompts, DRAWS)).astype(np.float32)
        self.long = self.log_length >= np.quantile(self.log_length, LONG_TENTH)
        self.turn = np.zeros(engine.prompts, np.int64)
        self.events: list[tuple[float, int, int]] = []
        self.running: dict[int, Ticket] = {}
        self.now = self.busy = 0.0
        self.asked = 0
        self.carry = 0.0
        self.update: Update | None = None
        self.ages: list[tuple[int, bool]] = []
        self.started = 0
        self.update_time = engine.update * stream.due.size * engine.mean_length / engine.slots

    def measures(self, updates: int) -> SlotMeasures:
        begun = (0.0, 0.0)
        self._fill()
        while self.stream.version < updates:
            if self.stream.version >= updates // 4 and not self.started:
                self.started, begun = self.stream.version, (self.now, self.busy)
                self.ages = []
            if not self.events and math.isinf(self.stream.deadline):
                raise ValueError("the stream must ask for rollouts or train, got neither; give it more prompts")
            self._step()
        time = self.now - begun[0]
        ages = np.array([age for age, _ in self.ages] or [0])
        long = np.array([is_long for _, is_long in self.ages] or [False])
        opened = self.stream.counts["opened"]
        return SlotMeasures(
            utilisation=(self.busy - begun[1]) / (time * self.engine.slots) if time else 0.0,
            largest_age=int(ages.max()),
            age=float(ages.mean()),
            long_share=float(long.mean() / self.long.mean()),
            budget=(self.asked + self.stream.pending) / max(1, opened),
            carry=self.carry,
        )

    def _step(self) -> None:
        """Go to the next event and take it."""
        due = min(self.events[0][0] if self.events else math.inf, self.stream.deadline)
        self.busy += (due - self.now) * len(self.running)
        self.now = due
        while self.events and self.events[0][0] <= due:
            _, kind, number = heapq.heappop(self.events)
            if kind:
                self._trained()
            elif (ticket := self.running.pop(number, None)) is not None:
                self.stream.arrived(ticket, self._result(ticket))
        self._fill()

    def _fill(self) -> None:
        """Give the free slots to the stream, and the trainer what is ready."""
        while True:
            decision = self.stream.decide(self.engine.slots - len(self.running), self.now)
            for ticket in decision.cancelled:
                self.running.pop(ticket.number, None)
            for ticket in decision.requests:
                self.running[ticket.number] = ticket
                self.asked += ticket.attempt == 0
                draw = self._draw(ticket)
                if self.chance[draw] >= self.engine.hanging or ticket.attempt:
                    heapq.heappush(self.events, (self.now + float(self.lengths[draw]), 0, ticket.number))
            self.carry = max(self.carry, abs(self.stream.carry))
            if decision.update is None and not decision.cancelled:
                return
            if decision.update is not None:
                self.update = decision.update
                if self.update_time:
                    heapq.heappush(self.events, (self.now + self.update_time, 1, 0))
                else:
                    self._trained()

    def _trained(self) -> None:
        if self.update is None:
            return
        for group, age in zip(self.update.groups, self.update.ages, strict=True):
            place = int(group.prompt.id)
            self.turn[place] += 1
            self.ages.append((age, bool(self.long[place])))
        self.stream.trained(self.update.version)
        self.update = None

    def _draw(self, ticket: Ticket) -> tuple[int, int]:
        place = int(ticket.prompt.id)
        return place, int(8 * self.turn[place] + ticket.rollout + ticket.attempt) % DRAWS

    def _result(self, ticket: Ticket) -> Rollout | None:
        draw = self._draw(ticket)
        failed = not ticket.attempt and self.chance[draw] >= 1 - self.engine.failing
        return None if failed else Rollout(bool(self.right[draw]), tokens=max(1, round(LENGTH * self.lengths[draw])))


class InOrder(Rows):
    """An update takes the groups in the order in which they were opened, whatever their age, to be compared with."""

    def take(self, finished: Mapping[int, int], units: Mapping[int, Unit], version: int, short: bool) -> list[int]:
        """Return what an update takes of the finished units before the first that is not finished."""
        leading = itertools.takewhile(lambda number: number in finished, units)
        return super().take({number: finished[number] for number in leading}, {}, version, short)
