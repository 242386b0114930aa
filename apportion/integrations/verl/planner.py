"""What comes next in a round: rollouts to order, groups to publish, and what is learnt from it when all is there."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from apportion.integrations.verl.messages import Order, Place, Report, place_of
from apportion.integrations.verl.publications import filler, publications
from apportion.integrations.verl.rounds import Asked, Part, Round
from apportion.types import Prompt

if TYPE_CHECKING:  # settings.py takes verl, which nothing here needs
    from apportion.integrations.verl.settings import Allocation

GUEST_SESSIONS = 1_000_000
"""Sessions of a host before those of its first guest, and of a guest before those of the next."""


class Guests(Protocol):
    """Prompts beyond the trainer's; ``drawn`` counts rows since the first."""

    drawn: int

    def draw(self, count: int, held: set[str]) -> list[Prompt]:
        """``count`` prompts whose ids are not in ``held``, and whose ``data`` is their row."""


@dataclass(frozen=True)
class Planner:
    """The library's loop, one report at a time: it hands what it wants done to ``ask``, and does not wait.

    What it raises is the allocator's, or the set-up's, and ends the round.
    """

    allocation: Allocation
    guests: Guests | None
    ask: Callable[[Asked], None]

    def start(self, round: Round) -> None:
        """Plans a round and orders its first rollouts."""
        allocator, prompts = self.allocation.allocator, list(round.dispatch.prompts)
        for own in [[prompt] for prompt in prompts] if allocator.separable else [prompts]:
            hosts = dict.fromkeys(place_of(prompt).host for prompt in own)
            round.parts.append(Part(allocator.start(own), tuple(hosts)))
        round.going = len(round.parts)
        for part in round.parts:
            self._advance(round, part)

    def sampled(self, round: Round, part: Part, asked: Asked, report: Report) -> None:
        """Takes rollouts that arrived; those that raised are ordered again, those that are late are not."""
        assert isinstance(asked.task, Order)
        missing = len(asked.task.sessions) - len(report.rollouts)
        round.counts["errors"] += len(report.failures)
        round.counts["expired"] += report.expired
        if report.error is not None:
            raise RuntimeError(report.error)
        part.arrived[asked.place] += report.rollouts
        if missing > 0 and not report.expired and asked.attempt < self.allocation.retries:
            round.counts["retried"] += missing
            self._order(round, part, asked.place, missing, asked.attempt + 1)
            return
        part.awaited -= 1
        if not part.awaited:
            part.end()
            self.allocation.allocator.check_rewards(part.batch)
            self._advance(round, part)

    def _advance(self, round: Round, part: Part) -> None:
        """Orders what is planned next of ``part``; where nothing is, it is done."""
        allocator = self.allocation.allocator
        while (plan := allocator.plan(part.batch)).fresh:
            part.batch = part.batch.join(allocator.start(self._drawn(round, part, plan.fresh)))
        for q in part.begin(plan):
            self._order(round, part, q, int(plan.counts[q]))
        if not plan:
            self._finish(round, part)

    def _drawn(self, round: Round, part: Part, count: int) -> list[Prompt]:
        """``count`` prompts beyond the trainer's, as guests of the hosts of ``part`` in turn."""
        if self.guests is None:
            raise ValueError(f"{self.allocation.allocator.name} draws fresh prompts, and there is no data set of them")
        found = []
        for prompt in self.guests.draw(count, {prompt.id for prompt in part.batch.prompts}):
            host = part.hosts[round.guests.total() % len(part.hosts)]
            round.guests[host] += 1
            number = round.guests[host]
            found.append(replace(prompt, data=Place(f"{host}.{number}", host, number * GUEST_SESSIONS, prompt.data)))
        return found

    def _order(self, round: Round, part: Part, q: int, count: int, attempt: int = 0) -> None:
        """Orders ``count`` rollouts of the prompt at ``q``, as sessions that it did not have yet."""
        place, limit = place_of(part.batch.prompts[q]), self.allocation.deadline_seconds
        round.waves[place.name] += 1
        first = place.offset + round.sessions[place.name]
        round.sessions[place.name] += count
        order = Order(
            f"{place.name}:{round.waves[place.name]}",
            place,
            tuple(range(first, first + count)),
            None if math.isinf(limit) else limit,
            part.answers(q) if self.allocation.label_free else (),
        )
        self.ask(Asked(round, order, part, q, attempt))

    def _finish(self, round: Round, part: Part) -> None:
        """Publishes ``part`` once anything of the round is there to train on; learns when it is the last."""
        part.groups = tuple(self.allocation.allocator.groups(part.batch))
        round.going -= 1
        round.trains = round.trains or any(group.keep.any() for group in part.groups)
        round.held.append(part)
        if not round.going:
            self._learn(round)
        if round.trains or not round.going:
            self._publish(round)

    def _learn(self, round: Round) -> None:
        """Learns from a round before the trainer has all of it, and so before any round that follows upon it."""
        allocator, batch = self.allocation.allocator, round.batch
        round.said = allocator.metrics(batch)
        allocator.observe(batch)
        round.closed = True

    def _publish(self, round: Round) -> None:
        """Publishes what is held, with a filler where there is nothing in all of the round."""
        held, round.held = round.held, []
        for part in held:
            groups, extra = list(part.groups or ()), None if round.trains else filler(part.batch)
            if extra is not None:
                groups.append(extra)
                round.trains = True
                round.counts["fillers"] += 1
            rewarded = self.allocation.label_free
            for publication in publications(part.batch, groups, part.hosts, round.sessions, rewarded=rewarded):
                self.ask(Asked(round, publication))
