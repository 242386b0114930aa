"""Rounds: a request of the trainer is a batch, and the library's loop runs on it one result at a time.

Prompts that share a budget wait for each other. Each is committed as soon as nothing can change it any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from apportion.loop import next_round
from apportion.predictors.saved import SavedValues
from apportion.runs.declared_types import fits
from apportion.types import Batch, Group, Plan, Prompt, Rollout
from apportion.verl.coordinator.commits import FinishedPrompts, History, single_rollout_group
from apportion.verl.coordinator.messages import RowAddress, TaskResult, address_of, uids_of
from apportion.verl.coordinator.planner import Learned, OpenRequest, Planner
from apportion.verl.coordinator.selection import PromptSelection

SESSIONS_PER_PROMPT = 1_000_000
"""Session numbers reserved per prompt. Extra prompts under the same uid begin at multiples of it."""


class ExtraPrompts(Protocol):
    """A source of prompts beyond the trainer's. ``drawn`` is the number of rows drawn since the first."""

    drawn: int

    def draw(self, count: int, held: set[str]) -> list[Prompt]:
        """Return ``count`` prompts whose ids are not in ``held``, and whose ``data`` is their row."""


@dataclass(eq=False)
class Round:
    """A request as a batch: its ``units`` of prompts that are planned together; some are still ``unfinished``.

    ``history`` has the baselines and weights of all prompts from before they were sampled, by id. Finished prompts are
    ``withheld`` until the round is ``trainable``, because one of them has a row; then their commits are ``sent``. The
    round is ``closed`` once the allocator has learned from it.
    """

    opened: OpenRequest
    history: dict[str, History]
    units: "list[RoundUnit]" = field(default_factory=list)
    unfinished: int = 0
    withheld: list[FinishedPrompts] = field(default_factory=list)
    sent: list[FinishedPrompts] = field(default_factory=list)
    trainable: bool = False
    closed: bool = False


@dataclass(eq=False)
class RoundUnit:
    """Prompts of a round that are planned together: a single one if the rule is separable, else all.

    ``plan`` is the wave in progress, ``arrived`` holds its rollouts by place, and ``running`` are the places that are
    not done. In the ``last`` wave none waits for the others, so each prompt is finished as soon as it is done.
    ``groups`` are set once all are.
    """

    round: Round
    batch: Batch
    last: bool = False
    groups: list[Group] = field(default_factory=list)
    plan: Plan = field(init=False)
    arrived: dict[int, list[Rollout]] = field(init=False)
    running: set[int] = field(init=False)

    def begin(self, plan: Plan) -> None:
        """Begin the wave of ``plan``."""
        self.plan = plan
        self.arrived = {q: [] for q in plan.counts.nonzero()[0].tolist()}
        self.running = set(self.arrived)

    def prompt(self, q: int) -> Batch:
        """Return prompt ``q``, with its results of this wave."""
        return self.batch.part([q]).add(Plan(self.plan.counts[[q]]), [self.arrived.get(q, ())])

    def end(self) -> None:
        """Add the wave to the batch."""
        self.batch = self.batch.add(self.plan, [self.arrived.get(q, ()) for q in range(len(self.batch.prompts))])


@dataclass
class RoundPlanner(Planner):
    """Plans each request as a round. Allocators that draw prompts take them from ``extra_prompts``."""

    extra_prompts: ExtraPrompts | PromptSelection | None

    def __post_init__(self) -> None:
        self.learned_uids = set[str]()  # before the run was resumed
        self._rounds: dict[str, Round] = {}  # by the uids that are not committed
        self._committed = set[str]()  # since the last log
        self._resumed = False

    def start(self, opened: OpenRequest) -> None:
        """Plan a round and request its first rollouts."""
        prompts, rule = opened.request.prompts, self.allocation.allocator
        round, uids, whole = Round(opened, self.history(prompts)), uids_of(prompts), rule.start(prompts)
        if self._resumed:  # verl requests again all that was in flight
            self.learned_uids.intersection_update(uids)
            self.given = {uid: self.given[uid] for uid in uids if uid in self.given}
            self._resumed = False
        self._rounds.update(dict.fromkeys(uids, round))
        again = [q for q, uid in enumerate(uids) if uid in self.given]
        new = [q for q, uid in enumerate(uids) if uid not in self.given]
        parts = [[q] for q in new] if rule.separable else [new]
        round.units = [RoundUnit(round, whole.part(own), own is again) for own in (again, *parts) if own]
        round.unfinished = len(round.units)
        for unit in round.units:
            if unit.last:
                self._begin(unit, Plan(np.array([self.given[uid] for uid in uids_of(unit.batch.prompts)])))
            else:
                self._advance(unit)

    def committed(self, uid: str) -> None:
        """Note that the trainer can find the rows of ``uid``."""
        del self._rounds[uid]
        self._committed.add(uid)

    def metrics(self) -> dict[str, float]:
        """Forget commits that were made before this log, because verl has saved its queue since then."""
        for uid in self._committed:
            self.given.pop(uid, None)
        self._committed.clear()
        return {}

    def state(self) -> dict[str, Any]:
        """Return the uids in unfinished rounds whose commits were sent, and the uids in flight that were learned from.

        verl saves its queue after the log of a step, and a resumed run requests again what was in flight then.
        """
        rounds = dict.fromkeys(round for round in self._rounds.values() if not round.closed)
        sent = [self._new(Batch.concatenate([each.batch for each in round.sent])) for round in rounds]
        own = {uid for round in rounds for each in round.sent for uid in each.uids}
        own |= {uid for uid, round in self._rounds.items() if round.closed}
        return super().state() | {
            "unfinished": [_without_data(batch) for batch in sent if batch.prompts],
            "learned_uids": sorted(self._committed | self.learned_uids | own),
        }

    def load(self, saved: SavedValues) -> None:
        """Restore ``state``. Learn from prompts that were committed, but not learned from."""
        super().load(saved)
        unfinished = saved.values["unfinished"]
        if not fits(unfinished, list[Batch]):
            raise saved.refusal("unfinished", "a list of batches")
        for batch in unfinished:
            self.allocation.observe(batch)
        self.learned_uids.update(saved.texts("learned_uids"))
        self._resumed = True

    def _new(self, batch: Batch) -> Batch:
        """Return ``batch`` without prompts that were learned from before the resume."""
        own = [q for q, prompt in enumerate(batch.prompts) if address_of(prompt).group not in self.learned_uids]
        return batch if len(own) == len(batch.prompts) else batch.part(own)

    def _advance(self, unit: RoundUnit) -> None:
        """Plan and begin the next wave of ``unit``, an empty one if nothing more is planned."""
        rule = self.allocation.allocator
        unit.batch, plan = next_round(rule, unit.batch, partial(self._draw, unit))
        alone = len(unit.batch.prompts) == unit.batch.started  # each under a uid of its own
        unit.last = bool(plan) and alone and bool(rule.final(unit.batch, plan).all())
        self._begin(unit, plan)

    def _begin(self, unit: RoundUnit, plan: Plan) -> None:
        """Request the rollouts of ``plan``.

        Finish prompts that get none in the last wave, and a unit whose plan is empty.
        """
        unit.begin(plan)
        if unit.last or not plan:
            self._keep_counts(unit.batch, plan)
        for q in unit.arrived:
            self._request(unit, q, int(plan.counts[q]))
        if unit.last:
            for q in np.flatnonzero(plan.counts == 0).tolist():
                self._finish_prompt(unit, q)
        if not plan:
            self._finish(unit)

    def _keep_counts(self, batch: Batch, plan: Plan) -> None:
        """Store the final counts, if the budget is shared within the round and draws no fresh prompts."""
        rule = self.allocation.allocator
        if not rule.separable and not rule.size(batch.started).fresh:
            self.given.update(zip(uids_of(batch.prompts), (batch.asked + plan.counts).tolist(), strict=True))

    def _draw(self, unit: RoundUnit, count: int) -> list[Prompt]:
        """Draw ``count`` extra prompts, and spread them evenly over the uids of ``unit``."""
        if self.extra_prompts is None:
            raise ValueError(f"{self.allocation.allocator.name} draws fresh prompts, and there is no data set of them")
        batch, uids, found = unit.batch, uids_of(unit.batch.prompts), list[Prompt]()
        for prompt in self.extra_prompts.draw(count, {prompt.id for prompt in batch.prompts}):
            turn, place = divmod(len(batch.prompts) - batch.started + len(found), len(uids))
            n, uid = turn + 1, uids[place]
            found.append(replace(prompt, data=RowAddress(f"{uid}.{n}", uid, n * SESSIONS_PER_PROMPT, prompt.data)))
        unit.round.history |= self.history(found)
        return found

    def _request(self, unit: RoundUnit, q: int, count: int, attempt: int = 0) -> None:
        address = address_of(unit.batch.prompts[q])
        self.request(unit.round.opened, address, count, partial(self._receive, unit, q, count, attempt))

    def _receive(self, unit: RoundUnit, q: int, count: int, attempt: int, result: TaskResult) -> None:
        """Take the rollouts of prompt ``q``. Request failed ones again, unless they are past the deadline."""
        self.allocation.check_arrived(unit.batch.prompts[q], *result.rollouts)
        missing = count - len(result.rollouts)
        unit.arrived[q] += result.rollouts
        if missing > 0 and not result.expired and attempt < self.allocation.retries:
            self.counts["retried"] += missing
            self._request(unit, q, missing, attempt + 1)
            return
        unit.running.discard(q)
        if unit.last:
            self._finish_prompt(unit, q)
        if unit.running:
            return
        unit.end()
        if unit.last:
            self._finish(unit)
            return
        self._advance(unit)

    def _finish_prompt(self, unit: RoundUnit, q: int) -> None:
        """Commit prompt ``q`` of the last wave."""
        batch = unit.prompt(q)
        self._withhold(unit.round, batch, self.allocation.allocator.groups(batch))
        self._commit(unit.round)

    def _finish(self, unit: RoundUnit) -> None:
        """Commit ``unit``, unless its prompts are committed already. After the last unit, learn from the round."""
        rule, batch, round = self.allocation.allocator, unit.batch, unit.round
        unit.groups = list(rule.groups(batch))
        if not unit.last:
            self._withhold(round, batch, unit.groups)
        round.unfinished -= 1
        if not round.unfinished:  # learn before the trainer has the last uid, so before any round that depends on it
            batch = Batch.concatenate([each.batch for each in round.units])
            metrics = rule.metrics(batch)
            if (new := self._new(batch)).prompts:
                self.allocation.observe(new)
            self.learned_uids.difference_update(uids_of(batch.prompts))
            round.closed = True
            self.end(Learned(batch, [group for each in round.units for group in each.groups], metrics))
            if not round.trainable and (single := single_rollout_group(batch)) is not None:
                (own,) = [each for each in round.withheld if address_of(single.prompt).uid in each.uids]
                own.add_single(single)
                round.trainable = True
                self.counts["empty_rounds"] += 1
        self._commit(round)

    def _withhold(self, round: Round, batch: Batch, groups: Sequence[Group]) -> None:
        """Withhold finished prompts until a group of the round has a row to train on."""
        finished = FinishedPrompts(batch, list(groups), round.history)
        round.trainable = round.trainable or finished.trainable
        round.withheld.append(finished)

    def _commit(self, round: Round) -> None:
        """Commit withheld prompts, once the round has a row to train on, or has ended without any rollout."""
        if round.trainable or round.closed:
            finished, round.withheld = round.withheld, []
            round.sent += finished
            for each in finished:
                self.commit(round.opened, each)


def _without_data(batch: Batch) -> Batch:
    """Return ``batch`` without what engines attached to the prompts, which an allocator does not need to learn."""
    return replace(batch, prompts=tuple(replace(prompt, data=None) for prompt in batch.prompts))
