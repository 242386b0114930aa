"""The decisions of a run, one event at a time: what is sampled next, and what the trainer takes.

``loop.collect`` waits for a batch. A ``Scheduler`` decides at each free slot: the next rollout of an open prompt, or
else the first one of a new prompt. With an age bound of 0 it decides as behind a barrier. It is a state machine without
a clock, threads or randomness of its own. The same events give the same decisions, also if it is saved and loaded
between any two of them.

The prompts that are planned together are a *unit*. How large it is depends on the rule:

- A separable rule plans each prompt alone.
- A rule with a price (``Price``) counts for each prompt alone, under a budget that holds on average.
- Any other rule needs ``batch``, the prompts of a unit. Its plans are those of ``loop.collect``.

Every unit that was opened is trained on, whatever its age, so no prompt is lost for being slow. The age of a unit is
counted at the start of an update, in updates since its first rollout was requested. An update takes every unit that has
reached ``age_bound``, and waits for it if it is not finished; it fills up with the units that finished first. New units
are opened while the rollouts not trained on are fewer than ``age_bound + 1`` updates hold. So the units that an update
must take rarely hold more rows than it has, and never has any of them exceeded the bound.

The scheduler counts versions of the policy itself: one more at each ``trained``. A rollout is as old as its request.

A baseline is predicted when an update is returned. So it has learned from all updates before, and from no rollout that
it is compared with.
"""

from __future__ import annotations

import heapq
import math
import operator
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from apportion.allocators import Allocator
from apportion.allocators.spending.budget import BudgetedAllocator
from apportion.allocators.spending.price import Price
from apportion.checks import check_integer
from apportion.loop import next_round
from apportion.predictors.saved import SavedValues
from apportion.scheduler.decisions import RunDecisions
from apportion.scheduler.plain import encode, restored
from apportion.scheduler.saved_settings import check_same_settings
from apportion.scheduler.sources import Offered, Selected
from apportion.scheduler.unit import Unit, restored_unit, saved_unit
from apportion.scheduler.updates import Prompts, Rows
from apportion.scheduler.values import SlotDecision, Ticket, Update
from apportion.selection import ShuffledEpochs
from apportion.types import Batch, Plan, Prompt, Rollout, prompt_list

FAILED_IN_A_ROW = 256
"""Number of consecutive rollouts given up that ends a run, because otherwise their prompts would be opened for ever."""

Entry = tuple[int, int, int, int, int, int]
"""An entry of the queue: version, -tokens ahead, unit, place, rollout, attempt. Old units come first, then long
ones."""
UNIT = 2

ADDED: Mapping[str, Any] = {"settings": {}, "baseline": {}}
"""Keys that states of 0.3.0 lack."""
UNREAD = ("chosen", "postponed", "selection", "lengths", "ended")
"""Further keys in states of 0.3.0 whose engine offers its prompts."""


class Scheduler:
    """Decides at each free slot what to sample, and when the trainer has an update.

    Args:
        decisions: the rule, with the baseline, the selection, the estimator and the weights of the run as a
            ``TrainerAllocation``; or the rule alone. All of them learn at ``trained``. Without a selection each prompt
            comes once an epoch, in random order.
        prompts: the data set, each prompt once.
        due: when an update is due: ``Rows``, or ``Prompts`` as engines train that count prompts.
        source: which prompt is opened next; ``Offered`` if an engine brings its prompts.
        batch: the prompts of a unit, for rules that plan a batch. None for rules that plan single prompts.
        attempts: how often a rollout that failed, or was not heard of, is requested in all.
        patience: seconds after which a request without an answer is cancelled. It must be longer than any sample
            takes. A shorter one would prefer short samples.
        slack: the most by which what is granted may differ from the budget, in its unit, for rules with a price.

    Raises ValueError for settings that do not fit the rule.

    >>> from apportion.allocators import Uniform
    >>> stream = Scheduler(Uniform(2), [Prompt("a"), Prompt("b")], Rows(2))
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
        decisions: RunDecisions | Allocator,
        prompts: Sequence[Prompt],
        due: Rows,
        source: Selected | Offered | None = None,
        *,
        batch: int | None = None,
        attempts: int = 3,
        patience: float = 3600.0,
        slack: float | None = None,
    ) -> None:
        if isinstance(decisions, Allocator):
            decisions = RunDecisions(allocator=decisions)
        if not isinstance(decisions, RunDecisions):
            raise ValueError(f"decisions must be an Allocator, or a TrainerAllocation with one, got {decisions!r:.80}")
        prompts = prompt_list(prompts)
        check_integer("attempts", attempts, 1, "a rollout is requested once at least")
        if not 0 < patience < math.inf:
            raise ValueError(f"patience must be above 0 seconds and finite, got {patience}; no request waits for ever")
        if not prompts or len({prompt.id for prompt in prompts}) < len(prompts):
            raise ValueError(f"prompts must be distinct and at least one, got {len(prompts)}; drop repeated ones")
        if batch is not None:
            check_integer("batch", batch, 1, "count the prompts that the rule plans together")
            if isinstance(due, Prompts):
                raise ValueError(
                    f"batch must be None for updates of Prompts, which are planned alone, got {batch}; count Rows"
                )
        self._prompts, self.due = prompts, replace(due)
        self._attempts, self._patience = attempts, patience
        rule, self._settings = decisions.allocator, {**decisions.settings, "batch": batch}
        self._price = price_of(rule, prompts, slack) if batch is None else None
        self.rule: Allocator = self._price.rule if self._price else rule
        self.source = Selected() if source is None else source
        if isinstance(self.source, Selected) and decisions.selection is None:
            decisions = replace(decisions, selection=ShuffledEpochs())
        self.decisions = replace(decisions, allocator=self.rule)
        self.source.prepare(prompts, self.decisions)
        self._size, self._batched = batch or 1, batch is not None
        if self._size > len(prompts):
            raise ValueError(f"batch must be at most the {len(prompts)} prompts of the data set, got {batch}")
        self.version, self._now = 0, -math.inf
        self._seen = 0
        self._units: dict[int, Unit] = {}
        self._finished: dict[int, int] = {}  # rows by number, in the order of finishing
        self._training: list[int] = []
        self._queue: list[Entry] = []
        self._outstanding: dict[int, tuple[Ticket, float]] = {}  # in the order of the requests
        self._held = np.zeros(len(prompts), bool)
        self.counts = self.due.counts
        self._failed_in_a_row = 0
        self.lent = 0
        self._lessons: list[Callable[[], None]] = []

    @property
    def outstanding(self) -> tuple[Ticket, ...]:
        """The requests without an answer, oldest first."""
        return tuple(ticket for ticket, _ in self._outstanding.values())

    @property
    def pending(self) -> int:
        """Number of planned rollouts of open prompts that were not requested yet.

        That many requests open no new prompt.
        """
        return len(self._queue)

    @property
    def training(self) -> tuple[int, ...]:
        """The units of the update that was returned last, until it is ``trained``."""
        return tuple(self._training)

    @property
    def ended(self) -> tuple[int, ...]:
        """The units that are finished and not yet ``trained``. Nothing changes them any more."""
        return (*self._training, *self._finished)

    @property
    def ready(self) -> int:
        """The amount that is ready for an update, in the unit of its size."""
        return int(sum(map(self.due.share, self._finished.values())))

    @property
    def _room(self) -> int:
        """Number of prompts that are not in flight."""
        return len(self._prompts) - sum(len(unit.places) for unit in self._units.values())

    @property
    def _reserved(self) -> float:
        """The total size of all units that are not yet trained on. Unfinished units count with their expected size."""
        return sum(unit.reserved for unit in self._units.values())

    @property
    def deadline(self) -> float:
        """The time at which the next request without an answer is cancelled; inf if there is none."""
        return next((asked + self._patience for _, asked in self._outstanding.values()), math.inf)

    @property
    def carry(self) -> float:
        """Amount granted beyond the budget, in its unit, for rules with a price; at most ``slack`` in size."""
        return self._price.carry if self._price else 0.0

    def decide(self, free: int, now: float) -> SlotDecision:
        """Return up to ``free`` requests, those to cancel at ``now`` seconds, and an update if one is ready.

        ``now`` may be of any clock. The slot of a cancelled request is free when the engine says so, in a later call.
        An update is returned once. After it no other one is returned before ``trained``. An update is smaller
        than its size only if no prompt is left to open and nothing is sampled.

        Raises RuntimeError if no rollout arrives any more: the latest 256 were given up.
        """
        if self._failed_in_a_row >= FAILED_IN_A_ROW:
            raise RuntimeError(
                f"rollouts must arrive, got none of the latest {self._failed_in_a_row} in {self._attempts} attempts "
                "each; mend the engine or the verifier, load the state that was saved last, and call restarted"
            )
        self._learn()
        self._now = max(self._now, now)
        cancelled: list[Ticket] = []
        while self.deadline <= self._now:
            late = next(iter(self._outstanding.values()))[0]
            cancelled.append(late)
            self._close(late, None)
        self.counts["cancelled"] += len(cancelled)
        update = self._take()
        requests: list[Ticket] = []
        while len(requests) < free and self._has_next():
            requests.append(self._request(heapq.heappop(self._queue)))
        if update is None and not (self._outstanding or self._queue) and self._room < self._size:
            update = self._take(short=True)
        return SlotDecision(tuple(requests), tuple(cancelled), update)

    def group(self, unit: int | None = None) -> tuple[Ticket, ...]:
        """Return all queued requests of ``unit``; without an argument, those of the oldest unit or of a new one.

        It is for engines that sample whole groups. There are none if no prompt can be opened.
        """
        if unit is None and self._has_next():
            unit = self._queue[0][UNIT]
        own = sorted(entry for entry in self._queue if entry[UNIT] == unit)
        self._queue = sorted(entry for entry in self._queue if entry[UNIT] != unit)
        return tuple(map(self._request, own))

    def arrived(self, ticket: Ticket, rollout: Rollout | None) -> bool:
        """Take the result of a request; None if it failed or was lost. Return whether it counts.

        A result that is doubled, unknown, or later than its cancellation does not count. Raises ValueError for a
        rollout without what the decisions read of it, such as a verdict or a score norm.
        """
        if not (rollout is None or isinstance(rollout, Rollout)):
            raise ValueError(
                f"a result must be a Rollout, or None if it failed, got {rollout!r:.80}; return one rollout"
            )
        if not self._waits_for(ticket):
            self.counts["ignored"] += 1
            return False
        if rollout is not None:
            self.decisions.check_arrived(ticket.prompt, rollout)
        self._close(ticket, rollout)
        return True

    def gave_up(self, ticket: Ticket) -> bool:
        """Take a request as failed without another attempt. Return whether it counts, as in ``arrived``."""
        if not self._waits_for(ticket):
            return self.arrived(ticket, None)
        self._close(replace(ticket, attempt=self._attempts - 1), None)
        return True

    def trained(self, version: int) -> bool:
        """Note that the update to ``version`` is done, and let all decisions learn from it. Return whether this is new.

        A version that was reached before changes nothing. Raises ValueError for one that no update was returned for. If
        a part of the run raises, the next call of any method goes on with that part, so that each learns once.
        """
        self._learn()
        if version <= self.version:
            return False
        if version != self.version + 1 or not self._training:
            raise ValueError(
                f"version must be that of the update that was returned last, got {version} at {self.version}; "
                "train on what decide returns"
            )
        units = [self._units[number] for number in self._training]
        batches = [unit.batch for unit in units]
        for batch in batches if self._batched else [Batch.concatenate(batches)]:
            self._lessons += [*self.decisions.lessons(batch), partial(self.source.observe, batch)]
        for unit in units:
            self._held[unit.places] = False
            del self._units[unit.number]
        self._training, self.version = [], version
        self._learn()
        return True

    def _learn(self) -> None:
        """Let each part that has not learned from the latest update learn from it."""
        if self._lessons and self._price:
            self._price.forget()
        while self._lessons:
            self._lessons[0]()
            del self._lessons[0]

    def check_trained(self) -> None:
        """Raise ValueError if a loop was given the update ``lent`` and has not called ``trained`` for it."""
        if self.lent > self.version:
            raise ValueError(
                f"the stream must know whether update {self.lent} is trained on before it is saved or goes on, got "
                f"neither; call trained({self.lent}) after the optimizer's step, or restarted() if it was not made"
            )

    def batch(self, unit: int) -> Batch:
        """Return the prompts of a unit that is not yet ``trained``, with their rollouts."""
        return self._units[unit].batch

    def unfinished(self) -> tuple[int, ...]:
        """Return the units that are still being sampled."""
        return tuple(number for number, unit in self._units.items() if unit.missing)

    def withdraw(self, units: Collection[int]) -> dict[int, int]:
        """Drop ``units`` of single prompts that are not in training, because their rollouts are lost.

        Return the rollouts that a price granted, by unit. Give them to ``offer`` if the prompt comes again.
        """
        gone, granted = set(units), dict[int, int]()
        self._outstanding = {n: each for n, each in self._outstanding.items() if each[0].unit not in gone}
        self._queue = sorted(entry for entry in self._queue if entry[UNIT] not in gone)
        for number in gone:
            unit = self._units.pop(number)
            self._finished.pop(number, None)
            self._held[unit.places] = False
            before = self.source.granted.get(unit.places[0])
            if self._price and self._price.decided(unit.batch):
                granted[number] = int(unit.batch.asked[0] + unit.plan.counts[0])
            elif before is not None:
                granted[number] = before
        return granted

    def state_dict(self) -> dict[str, Any]:
        """Return everything, with the states of the rule, the baseline and the selection, as values that JSON takes.

        Completions are not copied, so they must be such values themselves. An update that was returned and is not
        ``trained`` is returned again after ``restarted``. So save when the weights have all updates that are
        ``trained``, and no other. Raises ValueError in the body of a loop over ``stream_groups`` before it is.
        """
        self.check_trained()
        self._learn()
        return {
            "version": self.version, "now": None if math.isinf(self._now) else self._now, "seen": self._seen,
            "finished": list(self._finished), "training": list(self._training),
            "queue": [list(entry) for entry in self._queue],
            "counts": dict(self.counts),
            "units": [saved_unit(unit) for unit in self._units.values()],
            "outstanding": [
                [t.number, t.unit, t.place, t.rollout, t.attempt, t.version, asked]
                for t, asked in self._outstanding.values()
            ],
            "ids": [prompt.id for prompt in self._prompts],
            "settings": self._settings, "rule": encode(self.rule.state_dict()),
            "baseline": encode(baseline.state_dict()) if (baseline := self.decisions.baseline) else {},
            "price": self._price.state_dict() if self._price else {},
            **self.source.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned for the same decisions, prompts and settings.

        In a new process call ``restarted`` then; ``stream_groups`` does so itself. Raises ValueError for anything else.
        Then everything is as it was before.
        """
        self.lent, lessons, self._lessons = 0, self._lessons, []
        before = self.state_dict()
        try:
            self._load({**ADDED, **{name: state[name] for name in state if name in before or name not in UNREAD}})
        except Exception:
            self._load(before)
            self._lessons = lessons
            raise

    def _load(self, read: Mapping[str, Any]) -> None:
        saved = SavedValues(read, "a scheduler", list(self.state_dict()))
        check_same_settings(saved.state("settings"), self._settings)
        if saved.texts("ids") != [prompt.id for prompt in self._prompts]:
            raise ValueError(
                f"a scheduler must be restored with its own {len(saved.texts('ids'))} prompts in their order, got "
                f"{len(self._prompts)}; use the data set of the checkpoint, or start from an empty state"
            )
        self.version, self._seen = saved.count("version"), saved.count("seen")
        try:
            self.rule.load_state_dict(restored(read["rule"]))  # before the rows, which may reuse what it stores
            if self.decisions.baseline is not None:
                self.decisions.baseline.load_state_dict(restored(read["baseline"]))
            self._units = {values["number"]: restored_unit(values, self._prompts) for values in read["units"]}
            self._outstanding = {}
            for number, unit, place, *of_request, asked in read["outstanding"]:
                prompt = self._units[unit].batch.prompts[place]
                self._outstanding[number] = Ticket(number, unit, prompt, place, *of_request), float(asked)
            self._queue = [tuple(map(int, entry)) for entry in read["queue"]]  # type: ignore[misc]
            self._finished = {number: self._rows(self._units[number]) for number in read["finished"]}
            self._training = [self._units[number].number for number in read["training"]]
            self._now = -math.inf if read["now"] is None else float(read["now"])
            self.counts.clear()
            self.counts.update({name: operator.index(count) for name, count in read["counts"].items()})
            self.source.load_state_dict(read)
            self._check_whole()
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise ValueError(
                f"a saved state of a scheduler must be whole, got {error!r:.80}; load one unchanged"
            ) from error
        if self._price:
            self._price.load_state_dict(saved.state("price"))
        self._held[:] = False
        self._held[[place for unit in self._units.values() for place in unit.places]] = True

    def _check_whole(self) -> None:
        """Raise ValueError if a unit of a loaded state would never end, be trained on twice, or share its number."""
        asked = Counter([entry[UNIT] for entry in self._queue] + [ticket.unit for ticket in self.outstanding])
        ends = Counter(self.ended)
        for number, unit in self._units.items():
            if unit.missing != asked[number] or ends[number] != (not unit.missing) or number >= self.counts["opened"]:
                raise ValueError(
                    f"a saved state of a scheduler must be whole, got unit {number} with {unit.missing} missing and "
                    f"{asked[number]} requested rollouts, in {ends[number]} updates; load one unchanged"
                )

    def restarted(self) -> None:
        """Request again what was outstanding, and return again an update that was not trained on.

        Call it after loading a state if the tasks of the run that saved it have ended; ``stream_groups`` does. No
        attempt is counted.
        """
        for ticket, _ in self._outstanding.values():
            self._push(self._units[ticket.unit], ticket.place, ticket.rollout, ticket.attempt)
        self._outstanding, self._now = {}, -math.inf
        self._finished = {number: self._rows(self._units[number]) for number in self._training} | self._finished
        self._training, self.lent = [], 0

    def _has_next(self) -> bool:
        """Return whether a request can be made, for the oldest unit with one or else for a new unit.

        With a bound of 0 all units of an update are opened first, because none can be taken later.
        """
        while not self._queue or not self.due.age_bound:
            if self._reserved >= (self.due.age_bound + 1) * self.due.size or not self._open_unit():
                break
        return bool(self._queue)

    def _request(self, entry: Entry) -> Ticket:
        """Return the request of an ``entry`` that has left the queue."""
        _, _, number, place, rollout, attempt = entry
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
        if self._room < self._size or not (places := self._draw(self._size)):
            return False
        batch = (self._price or self.rule).start([self._prompts[place] for place in places])
        number, opened = self.counts["opened"], self.version - self.version % self.due.updates_a_version
        unit = self._units[number] = Unit(number, places, batch, opened, self._expected)
        self.counts["opened"] += 1
        self._advance(unit)
        return True

    @property
    def _expected(self) -> float:
        """The size that a unit is expected to add to an update, until its count is decided."""
        size = self.rule.size(self._size)
        return self.due.share(self._price.rows if self._price else float(size.kept or size.asked or self._size))

    def _draw(self, count: int) -> list[int]:
        """Return the indices of ``count`` prompts that are not in flight, and hold them. There must be enough.

        There are fewer if an engine has not offered so many.
        """
        about = max(round(self.due.size * self._size / max(1.0, self._expected)), self._size)
        found: list[int] = []
        while len(found) < count and (place := self.source.next(self._held, about)) is not None:
            self._held[place] = True
            found.append(place)
        return found

    def _waits_for(self, ticket: Ticket) -> bool:
        known = self._outstanding.get(ticket.number)
        return known is not None and known[0] == ticket

    def _close(self, ticket: Ticket, rollout: Rollout | None) -> None:
        """Add a result to its unit, or request it again. Advance the unit if its round is complete."""
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
        if not unit.missing:
            new: list[list[Rollout]] = [[] for _ in unit.batch.prompts]
            for at in sorted(unit.results):
                if (result := unit.results[at]) is not None:
                    new[at[0]].append(result)
            unit.batch, unit.results = unit.batch.add(unit.plan, new), {}
            self._advance(unit)

    def _advance(self, unit: Unit) -> None:
        """Plan the next round of ``unit`` and queue its requests, or finish it."""
        unit.plan = plan = self._plan(unit)
        unit.missing = int(plan.counts.sum())
        for place in np.flatnonzero(plan.counts).tolist():
            asked = int(unit.batch.asked[place])
            for rollout in range(asked, asked + int(plan.counts[place])):
                self._push(unit, place, rollout, 0)
        if not unit.missing:
            rows = self._finished[unit.number] = self._rows(unit)
            unit.reserved = self.due.share(rows)

    def _plan(self, unit: Unit) -> Plan:
        """Return the next round, with the fresh prompts that it needs. It is empty if the data set has no more."""
        if self._price:
            plan = self._price.plan(unit.batch, self.source.granted.get(unit.places[0]))
            if plan and self._price.decided(unit.batch):
                unit.reserved = self.due.share(float(unit.batch.asked[0] + plan.counts[0]))
            return plan

        def draw(count: int) -> list[Prompt] | None:
            if self._room < count:
                return None
            places = self._draw(count)
            unit.places += places
            return [self._prompts[place] for place in places]

        unit.batch, plan = next_round(self.rule, unit.batch, draw)
        return plan

    def _rows(self, unit: Unit) -> int:
        return sum(int(group.keep.sum()) for group in self.rule.groups(unit.batch))

    def _take(self, short: bool = False) -> Update | None:
        """Return the next update, unless the trainer is at work or has to wait."""
        if self._training or not self._finished:
            return None
        taken = self.due.take(self._finished, self._units, self.version, short)
        if not taken:
            return None
        training = sorted(taken)
        units = [self._units[number] for number in training]
        own = [(group, self.version - unit.opened) for unit in units for group in self.rule.groups(unit.batch)]
        groups, ages = tuple(group for group, _ in own), tuple(age for _, age in own)
        batch, baselines = Batch.concatenate([unit.batch for unit in units]), None
        if self.decisions.baseline is not None:
            baselines = self.decisions.baseline.predict([group.prompt for group in groups])
        update = Update(self.version + 1, groups, ages, batch, baselines, self.decisions.weighted(groups, baselines))
        self.due.took(len(taken))  # last, so that an update whose baseline raised is returned by a later call
        self._training = training
        for number in taken:
            del self._finished[number]
        return update


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
