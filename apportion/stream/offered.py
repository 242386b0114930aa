"""A stream whose prompts an engine hands over, from a data loader of its own."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from apportion.allocators import Allocator
from apportion.predictors.saved import SavedValues
from apportion.stream.stream import UNIT, Stream
from apportion.stream.unit import Unit
from apportion.stream.values import Ticket
from apportion.types import Batch, Plan, Prompt

NO_PATIENCE = 1e12
"""Seconds that no request lasts: the engine has deadlines of its own, and says ``gave_up``."""


class OfferedStream(Stream):
    """A ``Stream`` for an engine that brings its prompts, its deadlines, and updates of a number of prompts.

    Prompts are opened in the order of ``offer``. One that is in flight already is opened again later, and does not hold
    back the others. An update has ``prompts_an_update`` prompts with rows, or more if more are at ``age_bound``. With
    ``most_rows`` it has those finished prompts whose rows fit, which may be fewer. Later updates then have more.

    Args:
        rule: a rule that plans each prompt alone, or has a price.
        prompts: the data set, each prompt once. A price is that of all of them.
        prompts_an_update: prompts that an update holds at least.
        most_rows: rows that an update holds at most, unless groups at ``age_bound`` have more; None for any number.
        age_bound: as in ``Stream``.
        updates_a_version: updates between two of the engine's transfers of weights. Age is counted from the latest one.
        attempts: as in ``Stream``.

    Raises ValueError for a rule that compares prompts, and for one that draws prompts of its own.

    >>> from apportion.allocators import Uniform
    >>> stream = OfferedStream(Uniform(2), [Prompt("a"), Prompt("b")], prompts_an_update=1)
    >>> stream.decide(free=4, now=0.0).requests
    ()
    >>> stream.offer(Prompt("b").id)
    >>> [ticket.prompt.text for ticket in stream.decide(free=4, now=0.0).requests]
    ['b', 'b']
    """

    def __init__(
        self,
        rule: Allocator,
        prompts: Sequence[Prompt],
        *,
        prompts_an_update: int,
        most_rows: int | None = None,
        age_bound: int = 1,
        updates_a_version: int = 1,
        attempts: int = 3,
    ) -> None:
        limits: dict[str, Any] = {"age_bound": age_bound, "attempts": attempts, "patience": NO_PATIENCE}
        super().__init__(rule, prompts, rows_an_update=prompts_an_update, **limits)
        if rule.size(1).fresh:
            raise ValueError(
                f"the rule must not draw prompts of its own, got {rule.name}; the engine brings them, so use another"
            )
        self._place_of = {prompt.id: place for place, prompt in enumerate(self._prompts)}
        self._offered: deque[tuple[int, int | None]] = deque()
        self._granted: dict[int, int] = {}  # by place, from before a prompt was withdrawn
        self._ended: list[int] = []
        self._most_rows = most_rows
        self._updates_a_version = updates_a_version

    @property
    def missing(self) -> int:
        """The prompts that the next update lacks, if all that are open or can be opened get rows."""
        able = len({place for place, _ in self._offered if not self._held[place]})
        return max(0, self.rows_an_update - able - len(self.unfinished()) - self._ready)

    @property
    def training(self) -> tuple[int, ...]:
        """The units of the update that was returned last, until it is ``trained``."""
        return tuple(self._training)

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of prompts that wait for a first slot, are sampled, and wait for an update."""
        return {"offered": len(self._offered), "open": len(self.unfinished()), "ready": self._ready}

    def wanted(self) -> int:
        """Return how many prompts to ``offer`` beyond ``prompts_an_update`` for each update. They count as offered.

        They replace those of updates that had more, and prompts that got no rows.
        """
        wanted = max(self.counts["owed"], self.missing)
        self.counts["owed"] -= wanted
        return wanted

    def took(self, prompts: int) -> None:
        """Note that the trainer has taken an update of so many ``prompts`` that the stream did not know of."""
        self.counts["owed"] += prompts - self.rows_an_update
        self.version += 1

    def offer(self, id: str, granted: int | None = None) -> None:
        """Have the prompt with this id opened after those offered before.

        ``granted`` is the number of rollouts that it had before it was withdrawn. It gets them again, and the budget of
        a price is not charged twice. Raises ValueError for a prompt that is not in the data set.
        """
        if id not in self._place_of:
            raise ValueError(f"a prompt must be one of the {len(self._prompts)} of the stream, got id {id!r:.80}")
        self._offered.append((self._place_of[id], granted))

    def gave_up(self, ticket: Ticket) -> bool:
        """Take a request as failed without another attempt. Return whether it counts, as in ``arrived``."""
        known = self._outstanding.get(ticket.number)
        if known is None or known[0] != ticket:
            return self.arrived(ticket, None)
        self._close(replace(ticket, attempt=self._attempts - 1), None)
        return True

    def take_ended(self) -> tuple[int, ...]:
        """Return the units that were finished since the last call. Nothing changes them any more."""
        ended, self._ended = self._ended, []
        return tuple(ended)

    def batch(self, unit: int) -> Batch:
        """Return the prompt of a unit that is not yet ``trained``, with its rollouts."""
        return self._units[unit].batch

    def unfinished(self) -> tuple[int, ...]:
        """Return the units that are sampled."""
        return tuple(number for number, unit in self._units.items() if unit.missing)

    def withdraw(self, units: Collection[int]) -> dict[int, int]:
        """Forget ``units`` that are not in training, because their rollouts are lost.

        Return the rollouts that a price granted, by unit. Give them to ``offer`` if the prompt comes again.
        """
        gone, granted = set(units), dict[int, int]()
        self._outstanding = {n: each for n, each in self._outstanding.items() if each[0].unit not in gone}
        self._queue = sorted(entry for entry in self._queue if entry[UNIT] not in gone)
        self._ended = [number for number in self._ended if number not in gone]
        for number in gone:
            unit = self._units.pop(number)
            self._finished.pop(number, None)
            self._held[unit.places] = False
            before = self._granted.get(unit.places[0])
            if unit.decided and unit.plan is not None:
                granted[number] = int(unit.batch.asked[0] + unit.plan.counts[0])
            elif before is not None:
                granted[number] = before
        return granted

    def restarted(self) -> None:
        """As in ``Stream``."""
        if self._training:  # it will be taken, and counted, again
            self.counts["owed"] -= len(self._training) - self.rows_an_update
        super().restarted()

    def withdraw_offered(self) -> None:
        """Forget the prompts that were offered and have no request yet."""
        self._offered.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return everything, as in ``Stream``."""
        own = {"offered": list(self._offered), "granted": dict(self._granted), "ended": list(self._ended)}
        return super().state_dict() | own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned, as in ``Stream``."""
        SavedValues(state, "a stream", list(self.state_dict()))
        try:
            offered = deque((int(place), None if n is None else int(n)) for place, n in state["offered"])
            granted = {int(number): int(n) for number, n in state["granted"].items()}
            ended = [int(number) for number in state["ended"]]
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(
                f"a saved state of a stream must be whole, got {error!r:.80}; load one unchanged"
            ) from error
        super().load_state_dict(state)
        self._offered, self._granted, self._ended = offered, granted, ended

    def _next_offered(self) -> int | None:
        """Return the index in the queue of the next prompt that is not in flight."""
        return next((i for i, (place, _) in enumerate(self._offered) if not self._held[place]), None)

    def _open_unit(self) -> bool:
        if self._next_offered() is None:
            return False
        version, self.version = self.version, self.version // self._updates_a_version * self._updates_a_version
        opened = super()._open_unit()
        self.version = version
        return opened

    def _place(self) -> int:
        index = self._next_offered()
        assert index is not None
        place, granted = self._offered[index]
        del self._offered[index]
        self._granted.pop(place, None)
        if granted is not None:
            self._granted[place] = granted
        return place

    def _plan(self, unit: Unit) -> Plan:
        reserved, granted = unit.reserved, self._granted.get(unit.places[0])
        if self._price is None or granted is None or unit.decided:
            plan = super()._plan(unit)
        else:
            asked, first = int(unit.batch.asked[0]), self._price.rule.least
            waits = asked < first and not self._price.rule.one_round
            unit.decided = not waits
            plan = Plan(np.array([max(0, (first if waits else granted) - asked)]))
        unit.reserved = reserved
        return plan

    def _rows(self, unit: Unit) -> int:
        unit.kept = super()._rows(unit)
        return int(unit.kept > 0)

    def _waits(self, short: bool) -> bool:
        if super()._waits(True):
            return True
        enough = self._ready >= self.rows_an_update or short
        if not enough and self._most_rows is not None:
            enough = sum(self._units[number].kept for number in self._finished) >= self._most_rows
        return not enough

    def _chosen_units(self) -> list[int]:
        if self._most_rows is None:
            taken = super()._chosen_units()
        else:
            due, left, usual = self.version - self.age_bound, max(0, -self.counts["owed"]), self.rows_an_update
            taken = [number for number in self._finished if self._units[number].opened <= due]
            kept = {number: self._units[number].kept for number in self._finished}
            rows, must = sum(kept[number] for number in taken), set(taken)
            prompts, most = sum(kept[number] > 0 for number in taken), self._most_rows * (1 + left // usual)
            for number, own in kept.items():
                fits = not own or (prompts < usual + left and (not rows or rows + own <= most))
                if number not in must and fits:
                    taken.append(number)
                    rows, prompts = rows + own, prompts + (own > 0)
        self.counts["owed"] += len(taken) - self.rows_an_update
        return taken

    def _expected(self, prompts: int) -> float:
        return float(prompts)

    def _advance(self, unit: Unit) -> None:
        super()._advance(unit)
        if unit.number in self._finished:
            self._ended.append(unit.number)
