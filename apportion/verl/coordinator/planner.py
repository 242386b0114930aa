"""The library's loop, one result at a time: what a round requests, commits and teaches the allocator."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from apportion.allocators import check_rewards
from apportion.types import Batch, Counts, Group, Mask, Plan, Prompt
from apportion.verl.coordinator.commits import commit_tasks, single_rollout_group
from apportion.verl.coordinator.messages import RolloutTask, RowAddress, TaskResult, address_of
from apportion.verl.coordinator.rounds import (
    NO_PLAN,
    NOTHING_FINAL,
    AllocationRound,
    FinishedPrompts,
    History,
    PendingTask,
    PlannedBatch,
)
from apportion.verl.coordinator.selection import PromptSelection
from apportion.verl.coordinator.settings import VerlAllocation

SESSIONS_PER_PROMPT = 1_000_000
"""Session numbers reserved for a prompt. The extra prompts under a uid begin at multiples of it."""


class ExtraPrompts(Protocol):
    """A source of prompts beyond the trainer's. ``drawn`` is the number of rows drawn since the first."""

    drawn: int

    def draw(self, count: int, held: set[str]) -> list[Prompt]:
        """Return ``count`` prompts whose ids are not in ``held``, and whose ``data`` is their row."""


@dataclass(frozen=True)
class Planner:
    """Plans rounds. It hands tasks to ``submit`` and does not wait for them.

    An exception that it raises is a fault of the allocator or the set-up, and ends the round.

    ``learned_uids`` were learned from before the run was resumed. ``given`` has the number of rollouts of each prompt
    that shares a budget, once it is known. A prompt that a resumed run requests again gets that number again, because
    the others of its budget have theirs.
    """

    allocation: VerlAllocation
    extra_prompts: ExtraPrompts | PromptSelection | None
    submit: Callable[[PendingTask], None]
    selection: PromptSelection | None = None
    learned_uids: set[str] = field(default_factory=set)
    given: dict[str, int] = field(default_factory=dict)

    def start(self, round: AllocationRound) -> None:
        """Plan a round and request its first rollouts."""
        whole = self.allocation.allocator.start(round.request.prompts)
        uids = [address_of(prompt).uid for prompt in whole.prompts]
        every = range(len(uids))
        again, new = [q for q in every if uids[q] in self.given], [q for q in every if uids[q] not in self.given]
        if again:
            counts = Plan(np.array([self.given[uids[q]] for q in again]))
            round.batches.append(PlannedBatch(whole.part(again), tuple(uids[q] for q in again), given=counts))
        for own in [[q] for q in new] if self.allocation.allocator.separable else filter(None, [new]):
            batch = whole if len(own) == len(uids) else whole.part(own)
            round.batches.append(PlannedBatch(batch, tuple(dict.fromkeys(uids[q] for q in own))))
        round.unfinished = len(round.batches)
        for planned in round.batches:
            self._advance(round, planned)

    def receive(self, pending: PendingTask, result: TaskResult) -> None:
        """Take the rollouts of ``result``. Request failed ones again, but not those past the deadline."""
        round, planned, task = pending.round, pending.planned, pending.task
        assert planned is not None and isinstance(task, RolloutTask)
        missing = len(task.sessions) - len(result.rollouts)
        round.count(round.worker[task.uid], result)
        if result.error is not None:
            raise RuntimeError(result.error)
        planned.arrived[pending.index] += result.rollouts
        if missing > 0 and not result.expired and pending.attempt < self.allocation.retries:
            round.counts["retried"] += missing
            self._request(round, planned, pending.index, missing, pending.attempt + 1)
            return
        planned.running.discard(pending.index)
        now = time.monotonic()
        if not (planned.members and planned.final[pending.index]):
            planned.ended.append(now)
        if planned.running:
            self._finish_early(round, planned, [task.uid])
        else:
            round.waited += sum(now - ended for ended in planned.ended)
            planned.end()
            check_readable(self.allocation, self.selection, planned.batch)
            self._advance(round, planned)

    def unlearned(self, batch: Batch) -> Batch:
        """Return ``batch`` without the prompts that were learned from before the run was resumed."""
        own = [q for q, prompt in enumerate(batch.prompts) if address_of(prompt).group not in self.learned_uids]
        return batch if len(own) == len(batch.prompts) else batch.part(own)

    def _advance(self, round: AllocationRound, planned: PlannedBatch) -> None:
        """Request the next wave of ``planned``, or finish it if the allocator plans no more."""
        allocator = self.allocation.allocator
        while (plan := self._plan(planned)).fresh:
            planned.batch = planned.batch.join(allocator.start(self._draw(round, planned, plan.fresh)))
        if not plan:
            self._finish(round, planned)
            return
        final = NOTHING_FINAL if allocator.separable else self._final(planned, plan)
        self._keep_counts(planned, planned.batch.asked + plan.counts, final)
        for q in planned.begin(plan, final):
            self._request(round, planned, q, int(plan.counts[q]))
        if not allocator.separable:
            self._finish_early(round, planned, planned.uids)

    def _plan(self, planned: PlannedBatch) -> Plan:
        """Return the next plan. Raise RuntimeError if it changes prompts that are final."""
        if planned.given is not None:
            return planned.given if not planned.batch.round else NO_PLAN
        name, plan = self.allocation.allocator.name, self.allocation.allocator.plan(planned.batch)
        if planned.early:
            given = [uid for uid in planned.early if plan.counts[planned.members[uid]].any()]
            if given or plan.fresh:
                raise RuntimeError(
                    f"{name} must not change a batch that has final prompts, got {plan.fresh} fresh prompts, and more "
                    f"rollouts for {len(given)} final ones; correct its method final"
                )
        return plan

    def _final(self, planned: PlannedBatch, plan: Plan) -> Mask:
        """Return which prompts are final once their part of ``plan`` has arrived."""
        if planned.given is not None:
            return np.ones(len(planned.batch.prompts), bool)
        return self.allocation.allocator.final(planned.batch, plan)

    def _keep_counts(self, planned: PlannedBatch, counts: Counts, final: Mask) -> None:
        """Keep the ``counts`` of ``final`` prompts under a budget that no fresh prompts can share."""
        allocator, batch = self.allocation.allocator, planned.batch
        if final.any() and not allocator.separable and not allocator.size(batch.started).fresh:
            self.given.update({address_of(batch.prompts[q]).uid: int(counts[q]) for q in np.flatnonzero(final)})

    def _draw(self, round: AllocationRound, planned: PlannedBatch, count: int) -> list[Prompt]:
        """Draw ``count`` extra prompts, and spread them evenly over the uids of ``planned``."""
        if self.extra_prompts is None:
            raise ValueError(f"{self.allocation.allocator.name} draws fresh prompts, and there is no data set of them")
        found = []
        for prompt in self.extra_prompts.draw(count, {prompt.id for prompt in planned.batch.prompts}):
            uid = planned.uids[round.extra.total() % len(planned.uids)]
            round.extra[uid] += 1
            n = round.extra[uid]
            found.append(replace(prompt, data=RowAddress(f"{uid}.{n}", uid, n * SESSIONS_PER_PROMPT, prompt.data)))
        return found

    def _request(self, round: AllocationRound, planned: PlannedBatch, q: int, count: int, attempt: int = 0) -> None:
        """Request ``count`` rollouts of prompt ``q``, as new sessions."""
        address, limit = address_of(planned.batch.prompts[q]), self.allocation.deadline_seconds
        round.waves[address.group] += 1
        first = address.first_session + round.sessions[address.group]
        round.sessions[address.group] += count
        task = RolloutTask(
            f"{address.group}:{round.waves[address.group]}",
            address,
            tuple(range(first, first + count)),
            None if math.isinf(limit) else limit,
            planned.answers(q) if self.allocation.label_free else (),
        )
        self.submit(PendingTask(round, task, planned, q, attempt))

    def _finish_early(self, round: AllocationRound, planned: PlannedBatch, uids: Sequence[str]) -> None:
        """Commit those of ``uids`` that nothing can change any more, once the round has something to train on."""
        for uid in filter(planned.ends_early, uids):
            batch = planned.so_far(uid)
            check_readable(self.allocation, self.selection, batch)
            each = [batch] if len(batch.prompts) == 1 else [batch.part([q]) for q in range(len(batch.prompts))]
            groups = tuple(group for own in each for group in self.allocation.allocator.groups(own))
            planned.early.add(uid)
            self._withhold(round, planned, batch, (uid,), groups)
        if round.trainable:
            self._commit(round)

    def _withhold(
        self,
        round: AllocationRound,
        planned: PlannedBatch,
        batch: Batch,
        uids: tuple[str, ...],
        groups: tuple[Group, ...],
    ) -> None:
        """Hold finished prompts back until the round has something to train on, which they may have themselves."""
        planned.history = planned.history or history_of(self.allocation, self.selection, planned.batch)
        round.trainable = round.trainable or any(np.count_nonzero(group.keep) for group in groups)
        round.withheld.append(FinishedPrompts(batch, uids, groups, *planned.history))

    def _finish(self, round: AllocationRound, planned: PlannedBatch) -> None:
        """Commit ``planned`` once the round has something to train on. After the last batch, learn from the round."""
        allocator, batch = self.allocation.allocator, planned.batch
        planned.groups = tuple(allocator.groups(batch))
        late = np.array([address_of(prompt).uid not in planned.early for prompt in batch.prompts], bool)
        self._keep_counts(planned, batch.asked, late)
        round.unfinished -= 1
        rest = batch.part(np.flatnonzero(late).tolist()) if planned.early else batch
        groups = tuple(group for group in planned.groups if address_of(group.prompt).uid not in planned.early)
        uids = tuple(uid for uid in planned.uids if uid not in planned.early)
        self._withhold(round, planned, rest, uids, groups)
        if not round.unfinished:  # learn before the trainer has the last uid, so before any round that depends on it
            batch = round.batch
            round.metrics = allocator.metrics(batch)
            learn(self.allocation, self.selection, self.unlearned(batch))
            round.closed = True
        if round.trainable or not round.unfinished:
            self._commit(round)

    def _commit(self, round: AllocationRound) -> None:
        """Commit what is withheld. If the whole round has nothing to train on, add a group of one rollout."""
        if not round.trainable and (single := single_rollout_group(round.batch)) is not None:
            (own,) = [each for each in round.withheld if address_of(single.prompt).uid in each.uids]
            own.groups += (single,)
            if own.baselines is not None:
                own.baselines = own.baselines | {single.prompt.id: float(single.rewards[0])}  # so it has no signal
            round.trainable = True
            round.counts["empty_rounds"] += 1
        finished, round.withheld = round.withheld, []
        round.sent += finished
        for each in finished:
            for commit in commit_tasks(each, round.sessions, rewarded=self.allocation.label_free):
                self.submit(PendingTask(round, commit))


def learn(allocation: VerlAllocation, selection: PromptSelection | None, batch: Batch) -> None:
    """Teach the allocator and the baseline a finished ``batch``, then the selector. An empty one is left out."""
    if batch.prompts:
        allocation.observe(batch)
        if selection is not None:
            selection.observe(batch.sampled)


def check_readable(allocation: VerlAllocation, selection: PromptSelection | None, batch: Batch) -> None:
    """Raise ValueError unless all that learns from ``batch`` can read its rewards."""
    selector = None if selection is None else selection.selector
    with naming_the_verdict():
        for reader in (allocation.allocator, allocation.baseline, selector):
            if reader is not None:
                check_rewards(reader, batch)


@contextmanager
def naming_the_verdict() -> Iterator[None]:
    """Have a ValueError of rewards that cannot be read name the setting that helps."""
    try:
        yield
    except ValueError as error:
        raise ValueError(
            f"allocation.verdict must say which rollouts are correct: {error}; or set allocation.verdict=score, "
            "with which a reward above 0 is correct"
        ) from error


def history_of(allocation: VerlAllocation, selection: PromptSelection | None, batch: Batch) -> History:
    """Return the baselines of the prompts of ``batch``, from earlier rounds alone, and their weights in the loss."""
    ids = [prompt.id for prompt in batch.prompts]
    baselines = None if allocation.baseline is None else allocation.baseline.predict(batch.prompts)
    weights = None if selection is None else selection.weights(batch.prompts)
    return (
        None if baselines is None else dict(zip(ids, baselines.tolist(), strict=True)),
        None if weights is None else dict(zip(ids, weights.tolist(), strict=True)),
    )
