"""Asynchronous training in the lab: a stream samples on simulated slots while the policy moves.

A rollout is sampled by the policy of its request and ends later, so it may be trained on after updates. It is drawn at
the latest before the policy moves. So no old weights are kept, and the slots are sampled together. Its time does not
depend on what is drawn: it is the number of tokens of a right answer times a lognormal factor, half of
whose variance is the problem's. So longer problems, which are harder, take longer.
"""

import heapq
import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

import numpy as np

from apportion.allocators.stored_rollouts import plain_rollout
from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.training.pool import Pool
from apportion.lab.training.settings import Training
from apportion.predictors.saved import SavedValues
from apportion.scheduler import Rows, Scheduler, Selected, Ticket, Update
from apportion.scheduler.decisions import RunDecisions
from apportion.scheduler.unit import ROLLOUT
from apportion.types import Rollout

UPDATE = 0.5
"""Duration of an update, relative to sampling one update's rollouts on all slots."""
SHARED = 0.5
"""Share of the variance of log durations (1) that is due to the problem."""
CUT = 0.99
LONGEST = NormalDist().inv_cdf(CUT)
"""Log durations are cut at this quantile, as ``max_response_length`` cuts completions."""
MEAN_TIME = math.exp(0.5) * NormalDist().cdf(LONGEST - 1) + (1 - CUT) * math.exp(LONGEST)
"""The mean of the cut lognormal factor."""


class SlotSampler:
    """The slots of a run. ``next_update`` samples until an update is due; call ``stream.trained`` after it.

    Time is counted in tokens.
    """

    def __init__(
        self,
        training: Training,
        decisions: RunDecisions,
        pool: Pool,
        sampler: LedgerSampler,
        seed: int,
    ) -> None:
        assert training.age_bound is not None
        size = decisions.allocator.size(training.prompts_per_step)
        rows = size.kept or size.asked or training.prompts_per_step
        run = RunDecisions(allocator=decisions.allocator, selection=decisions.selection)
        self.stream = Scheduler(run, pool.prompts, Rows(rows, training.age_bound), Selected(seed=seed))
        self._row, self._sampler, self._slots, self._seed = pool.row, sampler, training.slots, seed
        tokens = np.array([2 * len(problem.operations) + 1 for problem in pool.problems])
        own = math.sqrt(SHARED) * np.random.default_rng([seed, 6]).normal(0, 1, len(tokens))
        self._log_times, self._longest = np.log(tokens) + own, np.log(tokens) + LONGEST
        self._update_time = UPDATE * rows * MEAN_TIME * float(tokens.mean()) / training.slots
        self._now = 0.0
        self._ends: list[tuple[float, int]] = []
        self._drawn: dict[int, tuple[Ticket, Rollout]] = {}

    def next_update(self) -> Update:
        """Return the next update, at the time when the policy changes. All running rollouts have been drawn by then."""
        update, ready = None, math.inf
        while True:
            decision = self.stream.decide(self._slots - len(self._ends), self._now)
            for ticket in decision.requests:
                heapq.heappush(self._ends, (self._now + self._time(ticket), ticket.number))
            if decision.update is not None:
                update, ready = decision.update, self._now + self._update_time
            if update is not None and (not self._ends or ready < self._ends[0][0]):
                self._now = ready
                self._draw()
                return update
            if not self._ends:
                raise RuntimeError("the stream must sample or train, got neither; report this error")
            self._now, number = heapq.heappop(self._ends)
            if number not in self._drawn:
                self._draw()
            self.stream.arrived(*self._drawn.pop(number))

    def state_dict(self) -> dict[str, Any]:
        """Return the stream with the allocator and the selection, and the rollouts that run in the slots."""
        return {
            "stream": self.stream.state_dict(),
            "now": self._now,
            "ends": [list(end) for end in self._ends],
            "drawn": [(number, plain_rollout(rollout, ROLLOUT)) for number, (_, rollout) in self._drawn.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned between two updates. Raise ValueError for anything else."""
        saved = SavedValues(state, "the slots", list(self.state_dict()))
        self._now = saved.number("now", low=0)
        self.stream.load_state_dict(saved.state("stream"))
        running = {ticket.number: ticket for ticket in self.stream.outstanding}
        try:
            self._ends = [(float(end), int(number)) for end, number in state["ends"]]
            self._drawn = {number: (running[number], Rollout(**values)) for number, values in state["drawn"]}
        except (LookupError, OverflowError, TypeError, ValueError) as error:
            raise saved.refusal("drawn", "with ends the rollouts in the slots") from error
        if not self._drawn.keys() == running.keys() == {number for _, number in self._ends}:
            raise saved.refusal("drawn", "the rollouts that the stream waits for")

    def _draw(self) -> None:
        """Sample by the present policy what was requested since the last call."""
        asked: dict[str, list[Ticket]] = {}
        for ticket in self.stream.outstanding:
            if ticket.number not in self._drawn:
                asked.setdefault(ticket.prompt.id, []).append(ticket)
        tickets = list(asked.values())
        found = self._sampler([own[0].prompt for own in tickets], [len(own) for own in tickets])
        for own, rollouts in zip(tickets, found, strict=True):
            self._drawn |= {ticket.number: (ticket, rollout) for ticket, rollout in zip(own, rollouts, strict=True)}

    def _time(self, ticket: Ticket) -> float:
        row = self._row[ticket.prompt.id]
        noise = math.sqrt(1 - SHARED) * np.random.default_rng([self._seed, ticket.number]).standard_normal()
        return float(np.exp(min(self._log_times[row] + noise, self._longest[row])))
