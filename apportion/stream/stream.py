"""Without a batch: who gets the next free slot of an engine that samples all the time, and what the trainer takes.

``loop.collect`` waits for a batch. A ``Stream`` decides at each free slot: the next rollout of an open prompt, or else
the first one of a new prompt. It is a state machine without a clock, threads or randomness of its own. The same events
give the same decisions, also if it is saved and loaded between any two of them.

The prompts that are planned together are a *unit*. How large it is depends on the rule:

- A separable rule plans each prompt alone.
- A rule with a price (``Price``) counts for each prompt alone, under a budget that holds on average.
- Any other rule needs ``batch``, the prompts of a unit. Its plans are those of ``loop.collect``.

Every unit that was opened is trained on, whatever its age, so no prompt is lost for being slow. The age of a unit is
counted at the start of an update, in updates since its first rollout was requested. An update takes every unit that has
reached ``age_bound``, and waits for it if it is not finished; it fills up with the units that finished first. New units
are opened while the rollouts not trained on are fewer than ``age_bound + 1`` updates hold. So the units that an update
must take rarely hold more rows than it has, and never has any of them exceeded the bound.

The stream counts versions of the policy itself: one more at each ``trained``. A rollout is as old as its request. What
a worker says of its version is compared and counted, and decides nothing.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from apportion.allocators import Allocator, check_rewards
from apportion.allocators.spending.budget import BudgetedAllocator
from apportion.allocators.spending.price import Price
from apportion.checks import check_integer, check_object
from apportion.predictors import MeanLengths
from apportion.predictors.saved import SavedValues
from apportion.selection import Selector, ShuffledEpochs
from apportion.selection.base import check_selector
from apportion.stream.unit import Unit, restored_unit, saved_unit
from apportion.stream.values import SlotDecision, Ticket, Update
from apportion.types import Batch, Plan, Prompt, Rollout, prompt_list

FAILED_IN_A_ROW = 256
"""So many rollouts given up one after the other end the run, because their prompts would be opened for ever."""

UNIT = 2
"""The place of the unit's number in an entry of the queue."""


class Stream:
    """Decides at each free slot what to sample, and when the trainer has an update, for ``rule``.

    Args:
        rule: the allocator. The stream calls its ``observe`` at ``trained``.
        prompts: the data set, each prompt once.
        rows_an_update: rollouts that an update holds at least. Groups stay whole, so it may hold a few more.
        age_bound: the most updates between the request of a group's first rollout and the update that takes it. With 0
            everything is sampled by the newest policy, and slots wait for each update.
        batch: the prompts of a unit, for rules that plan a batch. None for rules that plan single prompts.
        selection: which prompts are opened; by default each once an epoch, in random order. Prompts in flight are not
            chosen.
        lengths: predicts the lengths of completions; an object of its own. Then the prompts that are chosen for about
            one update are opened longest first, which leaves fewer slots idle at a small ``age_bound``. Which prompts
            are opened does not depend on it.
        seed: of the selection.
        attempts: how often a rollout that failed, or was not heard of, is requested in all.
        patience: seconds after which a request without an answer is cancelled. It must be longer than any sample
            takes. A shorter one would prefer short samples.
        slack: the most by which what is granted may differ from the budget, in its unit, for rules with a price.

    Raises ValueError for settings that do not fit the rule.

    >>> from apportion.allocators import Uniform
    >>> stream = Stream(Uniform(2), [Prompt("a"), Prompt("b")], rows_an_update=2)
    >>> first, second = stream.decide(free=2, now=0.0).requests
    >>> first.prompt == second.prompt, first.rollout, second.rollout
    (True, 0, 1)
    >>> stream.arrived(second, Rollout(True)), stream.arrived(first, Rollout(False)), stream.arrived(first, None)
    (True, True, False)
    >>> update = stream.decide(free=0, now=1.0).update
    >>> [group.rewards.tolist() for group in update.groups], stream.trained(update.version), stream.version
    ([[0.0, 1.0]], True, 1)
    """

    def __init__(
        self,
        rule: Allocator,
        prompts: Sequence[Prompt],
        *,
        rows_an_update: int,
        age_bound: int = 1,
        batch: int | None = None,
        selection: Selector | None = None,
        lengths: MeanLengths | None = None,
        seed: int = 0,
        attempts: int = 3,
        patience: float = 3600.0,
        slack: float | None = None,
    ) -> None:
        check_object("rule", rule, "Allocator")
        check_integer("rows_an_update", rows_an_update, 1, "count the rollouts that an update trains on")
        check_integer("age_bound", age_bound, 0, "count updates; 0 samples everything by the newest policy")
        check_integer("attempts", attempts, 1, "a rollout is requested once at least")
        if not 0 < patience < math.inf:
            raise ValueError(f"patience must be above 0 seconds and finite, got {patience}; no request waits for ever")
        self._prompts = prompt_list(prompts)
        if not self._prompts or len({prompt.id for prompt in self._prompts}) < len(self._prompts):
            raise ValueError(f"prompts must be distinct and at least one, got {len(self._prompts)}; drop repeated ones")
        self.rows_an_update, self.age_bound = rows_an_update, age_bound
        self._attempts, self._patience = attempts, patience
        if batch is not None:
            check_integer("batch", batch, 1, "count the prompts that the rule plans together")
        self._price = price_of(rule, self._prompts, slack) if batch is None else None
        self.rule: Allocator = self._price.rule if self._price else rule
        self._size, self._batched = batch or 1, batch is not None
        if self._size > len(self._prompts):
            raise ValueError(f"batch must be at most the {len(self._prompts)} prompts of the data set, got {batch}")
        self.version, self._now = 0, -math.inf
        self._seen = 0
        self._units: dict[int, Unit] = {}
        self._finished: dict[int, int] = {}  # rows by number, in the order of finishing
        self._training: list[int] = []
        # (version, -tokens ahead, unit, place, rollout, attempt): old units first, and then long ones
        self._queue: list[tuple[int, int, int, int, int, int]] = []
        self._outstanding: dict[int, tuple[Ticket, float]] = {}  # in the order of the requests
        self._held = np.zeros(len(self._prompts), bool)
        self._chosen: list[int] = []
        self._postponed: list[int] = []
        self.counts: Counter[str] = Counter()
        self._failed_in_a_row = 0
        self._lengths = lengths
        self._selection = ShuffledEpochs() if selection is None else selection
        check_selector(self._selection, self.rule.needs)
        self._selection.prepare(self._prompts, seed, getattr(self.rule, "predictor", None))

    @property
    def outstanding(self) -> tuple[Ticket, ...]:
        """The requests without an answer, oldest first."""
        return tuple(ticket for ticket, _ in self._outstanding.values())

    @property
    def pending(self) -> int:
        """The planned rollouts of open prompts that were not requested yet: so many requests open no further prompt."""
        return len(self._queue)

    @property
    def _room(self) -> int:
        """The prompts that are not in flight."""
        return len(self._prompts) - sum(len(unit.places) for unit in self._units.values())

    @property
    def _reserved(self) -> float:
        """The rows of all units that are not trained on, of unfinished ones those that are expected."""
        return sum(unit.reserved for unit in self._units.values())

    @property
    def _ready(self) -> int:
        """The rows that wait for an update."""
        return sum(self._finished.values())

    @property
    def deadline(self) -> float:
        """The time at which the next request without an answer is cancelled; inf if there is none."""
        return next((asked + self._patience for _, asked in self._outstanding.values()), math.inf)

    @property
    def carry(self) -> float:
        """What was granted beyond the budget, of rules with a price, in its unit; at most ``slack`` in size."""
        return self._price.carry if self._price else 0.0

    def decide(self, free: int, now: float) -> SlotDecision:
        """Return up to ``free`` requests, those to cancel at ``now`` seconds, and an update if one is ready.

        ``now`` may be of any clock. The slot of a cancelled request is free when the engine says so, in a later call.
        An update is returned once. After it no other one is returned before ``trained``. An update has less than
        ``rows_an_update`` rows only if no prompt is left to open and nothing is sampled.

        Raises RuntimeError if no rollout arrives any more: the latest 256 were given up.
        """
        if self._failed_in_a_row >= FAILED_IN_A_ROW:
            raise RuntimeError(
                f"rollouts must arrive, got none of the latest {self._failed_in_a_row} in {self._attempts} attempts "
                "each; mend the engine or the verifier, load the state that was saved last, and call restarted"
            )
        self._now = max(self._now, now)
        cancelled: list[Ticket] = []
        while self.deadline <= self._now:
            late = next(iter(self._outstanding.values()))[0]
            cancelled.append(late)
            self._close(late, None)
        self.counts["cancelled"] += len(cancelled)
        update = self._take()
        requests: list[Ticket] = []
        while len(requests) < free and (found := self._next()) is not None:
            requests.append(found)
        if update is None and not (self._outstanding or self._queue) and self._room < self._size:
            update = self._take(short=True)
        return SlotDecision(tuple(requests), tuple(cancelled), update)

    def arrived(self, ticket: Ticket, rollout: Rollout | None, version: int | None = None) -> bool:
        """Take the result of a request; None if it failed or was lost. Return whether it counts.

        A result that is doubled, unknown, or later than its cancellation does not count. ``version`` is what the worker
        says that it sampled with. It is counted if it is not between that of the request and the newest one.
        """
        if not (rollout is None or isinstance(rollout, Rollout)):
            raise ValueError(
                f"a result must be a Rollout, or None if it failed, got {rollout!r:.80}; return one rollout"
            )
        known = self._outstanding.get(ticket.number)
        if known is None or known[0] != ticket:
            self.counts["ignored"] += 1
            return False
        if version is not None and not ticket.version <= version <= self.version:
            self.counts["wrong_version"] += 1
        self._close(known[0], rollout)
        return True

    def trained(self, version: int) -> bool:
        """Say that the update that makes ``version`` is done, and let the rule learn. Return whether this is new.

        A version that was reached before changes nothing. Raises ValueError for one that no update was returned for.
        """
        if version <= self.version:
            return False
        if version != self.version + 1 or not self._training:
            raise ValueError(
                f"version must be that of the update that was returned last, got {version} at {self.version}; "
                "train on what decide returns"
            )
        units = [self._units.pop(number) for number in self._training]
        batches = [unit.batch for unit in units]
        for batch in batches if self._batched else [Batch.concatenate(batches)]:
            self.rule.observe(batch)
            self._selection.observe(batch)
            if self._lengths is not None:
                self._lengths.update(batch)
        self._held[[place for unit in units for place in unit.places]] = False
        self._training, self.version = [], version
        if self._price:
            self._price.forget()
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return everything, with the states of the rule and of the selection. Completions are not copied."""
        return {
            "version": self.version, "now": self._now, "seen": self._seen,
            "finished": list(self._finished), "training": list(self._training), "queue": list(self._queue),
            "chosen": list(self._chosen), "postponed": list(self._postponed), "counts": dict(self.counts),
            "units": [saved_unit(unit) for unit in self._units.values()],
            "outstanding": [
                (t.number, t.unit, t.place, t.rollout, t.attempt, t.version, asked)
                for t, asked in self._outstanding.values()
            ],
            "ids": [prompt.id for prompt in self._prompts],
            "rule": self.rule.state_dict(),
            "selection": self._selection.state_dict(),
            "price": self._price.state_dict() if self._price else {},
            "lengths": self._lengths.state_dict() if self._lengths else {},
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned for the same rule, prompts and settings. Raise ValueError otherwise."""
        saved = SavedValues(state, "a stream", list(self.state_dict()))
        if saved.texts("ids") != [prompt.id for prompt in self._prompts]:
            raise ValueError(
                f"a stream must be restored with its own {len(saved.texts('ids'))} prompts in their order, got "
                f"{len(self._prompts)}; use the data set of the checkpoint, or start from an empty state"
            )
        self.rule.load_state_dict(saved.state("rule"))  # before the rows of groups, which may reuse what it stores
        try:
            units = {unit.number: unit for unit in (restored_unit(values, self._prompts) for values in state["units"])}
            outstanding = {}
            for number, unit, place, rollout, attempt, version, asked in state["outstanding"]:
                prompt = units[unit].batch.prompts[place]
                outstanding[number] = Ticket(number, unit, prompt, place, rollout, attempt, version), float(asked)
            queue = [tuple(map(int, entry)) for entry in state["queue"]]
            finished = {number: self._rows(units[number]) for number in state["finished"]}
            training = [units[number].number for number in state["training"]]
            chosen, postponed = ([int(place) for place in state[key]] for key in ("chosen", "postponed"))
            counts = Counter(state["counts"])
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise ValueError(
                f"a saved state of a stream must be whole, got {error!r:.80}; load one unchanged"
            ) from error
        version, seen = saved.count("version"), saved.count("seen")
        self._selection.load_state_dict(saved.state("selection"))
        if self._price:
            self._price.load_state_dict(saved.state("price"))
        if self._lengths is not None:
            self._lengths.load_state_dict(saved.state("lengths"))
        self.version, self._seen, self._now = version, seen, float(state["now"])
        self._units, self._outstanding, self._queue = units, outstanding, queue  # type: ignore[assignment]
        self._finished, self._training, self._chosen, self.counts = finished, training, chosen, counts
        self._postponed = postponed
        self._held[:] = False
        self._held[[place for unit in units.values() for place in unit.places]] = True

    def restarted(self) -> None:
        """Request again what was outstanding, and return again an update that was not trained on.

        Call it after loading a state if the tasks of the run that saved it have ended. No attempt is counted.
        """
        for ticket, _ in self._outstanding.values():
            self._push(self._units[ticket.unit], ticket.place, ticket.rollout, ticket.attempt)
        self._outstanding, self._now = {}, -math.inf
        self._finished = {number: self._rows(self._units[number]) for number in self._training} | self._finished
        self._training = []

    def _next(self) -> Ticket | None:
        """Return the next request: of the oldest unit with one, or else of a new unit.

        With a bound of 0 all units of an update are opened first, because none can be taken later.
        """
        while not self._queue or not self.age_bound:
            if self._reserved >= (self.age_bound + 1) * self.rows_an_update or not self._open_unit():
                break
        if not self._queue:
            return None
        _, _, number, place, rollout, attempt = heapq.heappop(self._queue)
        prompt = self._units[number].batch.prompts[place]
        ticket = Ticket(self._seen, number, prompt, place, rollout, attempt, self.version)
        self._seen += 1
        self._outstanding[ticket.number] = ticket, self._now
        return ticket

    def _push(self, unit: Unit, place: int, rollout: int, attempt: int) -> None:
        """Queue a request. Among units of one version the prompt with the most tokens ahead comes first.

        These are the mean of its rollouts. Before its first round they are unknown: those of a mean prompt in the two
        rounds that it needs. The longest come last if the queue is in order, and the update waits for them.
        """
        ahead = 0
        if not self.rule.one_round:
            own = [found.tokens for found in unit.batch.rollouts[place] if found.tokens is not None]
            ahead = sum(own) // len(own) if own else 2 * self.counts["tokens"] // max(1, self.counts["arrived"])
        heapq.heappush(self._queue, (unit.opened, -ahead, unit.number, place, rollout, attempt))

    def _open_unit(self) -> bool:
        """Start a unit with new prompts. Return False if too few are left that are not in flight."""
        if self._room < self._size:
            return False
        places = self._draw(self._size)
        batch = (self._price or self.rule).start([self._prompts[place] for place in places])
        number = self.counts["opened"]
        unit = Unit(number, places, batch, self.version, self._expected(len(places)))
        self.counts["opened"] += 1
        self._units[number] = unit
        self._advance(unit)
        return True

    def _expected(self, prompts: int) -> float:
        """Return the rows that a unit is expected to have, until it is finished."""
        if self._price:
            return self._price.rows
        size = self.rule.size(prompts)
        return float(size.kept or size.asked or prompts)

    def _draw(self, count: int) -> list[int]:
        """Return ``count`` places of prompts that are not in flight, which are held from now on. So many must be."""
        found: list[int] = []
        while len(found) < count:
            place = self._place()
            self._held[place] = True
            found.append(place)
        return found

    def _place(self) -> int:
        """Return the next place by the selection. A turn that comes while its prompt is in flight is put off.

        If it were lost, as behind a barrier, slow prompts would get fewer turns.
        """
        for late in self._postponed:
            if not self._held[late]:
                self._postponed.remove(late)
                return late
        while True:
            self._chosen = self._chosen or self._choose()
            if not self._held[self._chosen[-1]]:
                return self._chosen.pop()
            self._postponed.append(self._chosen.pop())

    def _choose(self) -> list[int]:
        """Return the places of the next prompts, about as many as an update has, the last one first."""
        prompts = max(round(self.rows_an_update * self._size / max(1.0, self._expected(self._size))), self._size)
        if self._selection.learns:
            held = [self._prompts[place].id for place in np.flatnonzero(self._held)]
            places = self._selection.choose(min(prompts, len(self._prompts) - len(held)), held)[::-1]
        else:
            places = self._selection.choose(min(prompts, len(self._prompts)))[::-1]
        if self._lengths is None:
            return places
        predicted = self._lengths.predict([self._prompts[place] for place in places])
        return [places[i] for i in np.argsort(predicted, kind="stable").tolist()]

    def _close(self, ticket: Ticket, rollout: Rollout | None) -> None:
        """Take a result into its unit, or request it again; go on with the unit if its round is complete."""
        del self._outstanding[ticket.number]
        if rollout is None and ticket.attempt + 1 < self._attempts:
            self.counts["again"] += 1
            self._push(self._units[ticket.unit], ticket.place, ticket.rollout, ticket.attempt + 1)
            return
        if rollout is not None:
            self.counts["arrived"] += 1
            self.counts["tokens"] += rollout.tokens or 0
        self.counts["failed"] += rollout is None
        self._failed_in_a_row = self._failed_in_a_row + 1 if rollout is None else 0
        unit = self._units[ticket.unit]
        unit.results[ticket.place, ticket.rollout] = rollout
        unit.missing -= 1
        if not unit.missing and unit.plan:
            new: list[list[Rollout]] = [[] for _ in unit.batch.prompts]
            for (place, _), result in sorted(unit.results.items(), key=lambda item: item[0]):
                if result is not None:
                    new[place].append(result)
            unit.batch, unit.results = unit.batch.add(unit.plan, new), {}
            check_rewards(self.rule, unit.batch)
            self._advance(unit)

    def _advance(self, unit: Unit) -> None:
        """Plan the next round of ``unit`` and queue its requests, or finish it."""
        while (plan := self._plan(unit)).fresh:
            if self._room < plan.fresh:  # the data set has no more, so the unit ends with what it has
                plan = Plan(np.zeros(len(unit.batch.prompts), np.int64))
                break
            places = self._draw(plan.fresh)
            unit.batch = unit.batch.join(self.rule.start([self._prompts[place] for place in places]))
            unit.places += places
        unit.plan = plan
        unit.missing = int(plan.counts.sum())
        for place in np.flatnonzero(plan.counts).tolist():
            asked = int(unit.batch.asked[place])
            for rollout in range(asked, asked + int(plan.counts[place])):
                self._push(unit, place, rollout, 0)
        if not unit.missing:
            unit.reserved = self._finished[unit.number] = self._rows(unit)

    def _plan(self, unit: Unit) -> Plan:
        """Return the next round. With a price, the count of the prompt is decided once, and kept in the budget."""
        if self._price is None:
            return self.rule.plan(unit.batch)
        plan, decided = self._price.plan(unit.batch, unit.decided)
        if decided and not unit.decided:
            unit.reserved = float(unit.batch.asked[0] + plan.counts[0])
        unit.decided = decided
        return plan

    def _rows(self, unit: Unit) -> int:
        return sum(int(group.keep.sum()) for group in self.rule.groups(unit.batch))

    def _take(self, short: bool = False) -> Update | None:
        """Return the next update, unless the trainer is at work or has to wait."""
        if self._training or not self._finished or self._waits(short):
            return None
        taken = self._chosen_units()
        self._training = sorted(taken)
        for number in taken:
            del self._finished[number]
        units = [self._units[number] for number in self._training]
        groups = [(group, self.version - unit.opened) for unit in units for group in self.rule.groups(unit.batch)]
        batch = Batch.concatenate([unit.batch for unit in units])
        return Update(self.version + 1, tuple(group for group, _ in groups), tuple(age for _, age in groups), batch)

    def _waits(self, short: bool) -> bool:
        """Return whether a unit that has reached the age bound is not finished, or the rows are too few."""
        due = self.version - self.age_bound
        late = any(unit.missing and unit.opened <= due for unit in self._units.values())
        return late or (self._ready < self.rows_an_update and not short)

    def _chosen_units(self) -> list[int]:
        """Return the finished units that the next update takes: all at the age bound, then those that finished first.

        Units without rows come along, to be learnt from.
        """
        due = self.version - self.age_bound
        taken = [number for number in self._finished if self._units[number].opened <= due]
        rows, must = sum(self._finished[number] for number in taken), set(taken)
        for number, own in self._finished.items():
            if number not in must and (rows < self.rows_an_update or not own):
                taken.append(number)
                rows += own
        return taken


def plans_prompts_alone(rule: Allocator) -> bool:
    """Return whether a stream needs no ``batch`` for ``rule``, because it is separable or has a price."""
    return rule.separable or (isinstance(rule, BudgetedAllocator) and rule.priced)


def price_of(rule: Allocator, prompts: Sequence[Prompt], slack: float | None = None) -> Price | None:
    """Return the price under which ``rule`` plans prompts alone; None if it is separable.

    Raises ValueError for a rule that compares prompts.
    """
    if not plans_prompts_alone(rule):
        raise ValueError(
            f"batch must say how many prompts {rule.name} plans together, because it compares prompts, got None; give "
            "batch=, or a rule that is separable or has a price"
        )
    return Price(rule, prompts, slack) if isinstance(rule, BudgetedAllocator) and not rule.separable else None
