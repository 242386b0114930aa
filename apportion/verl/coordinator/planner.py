"""The library's loop, one result at a time: what a round requests, commits and teaches the allocator."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from apportion.allocators import check_rewards
from apportion.types import Batch, Counts, Group, Mask, Plan, Prompt
from apportion.verl.coordinator.commits import commit_tasks, single_rollout_group
from apportion.verl.coordinator.messages import RolloutTask, RowAddress, TaskResult, address_of, uids_of
from apportion.verl.coordinator.rounds import (
    NO_PLAN,
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
    """Plans rounds. It hands tasks to ``submit`` and does not wait for them, and calls ``end`` with rounds that end.

    An exception that it raises is a fault of the allocator or the set-up, and ends the round.

    ``learned_uids`` were learned from before the run was resumed. ``given`` has the number of rollouts of each prompt
    that shares a budget, once it is known. A prompt that a resumed run requests again gets that number again, because
    the others of its budget have theirs.
    """

    allocation: VerlAllocation
    extra_prompts: ExtraPrompts | PromptSelection | None
    submit: Callable[[PendingTask], None]
    end: Callable[[AllocationRound], None]
    learned_uids: set[str] = field(default_factory=set)
    given: dict[str, int] = field(default_factory=dict)

    def start(self, round: AllocationRound) -> None:
        """Plan a round and request its first rollouts."""
        whole, uids = self.allocation.allocator.start(round.request.prompts), uids_of(round.request.prompts)
        again = [q for q, uid in enumerate(uids) if uid in self.given]
        new = [q for q, uid in enumerate(uids) if uid not in self.given]
        if again:
            counts = Plan(np.array([self.given[uids[q]] for q in again]))
            round.batches.append(PlannedBatch(whole.part(again), given=counts))
        parts = [[q] for q in new] if self.allocation.allocator.separable else [new]
        round.batches += [PlannedBatch(whole.part(own)) for own in parts if own]
        round.unfinished = len(round.batches)
        for planned in round.batches:
            self._advance(round, planned)

    def receive(self, pending: PendingTask, result: TaskResult) -> None:
        """Take the rollouts of ``result``. Request failed ones again, but not those past the deadline."""
        round, planned, task = pending.round, pending.planned, pending.task
        assert planned is not None and isinstance(task, RolloutTask)
        missing = len(task.sessions) - len(result.rollouts)
        round.count(round.worker[task.uid], result)
        planned.arrived[pending.index] += result.rollouts
        if missing > 0 and not result.expired and pending.attempt < self.allocation.retries:
            round.counts["retried"] += missing
            self._request(round, planned, pending.index, missing, pending.attempt + 1)
            return
        planned.running.discard(pending.index)
        now = time.monotonic()
        if not planned.final[pending.index]:
            planned.ended.append(now)
        if planned.running:
            self._finish_early(round, planned, [task.uid])
        else:
            round.waited += sum(now - ended for ended in planned.ended)
            planned.end()
            check_readable(self.allocation, planned.batch)
            self._advance(round, planned)

    def unlearned(self, batch: Batch) -> Batch:
        """Return ``batch`` without the prompts that were learned from before the run was resumed."""
        own = [q for q, prompt in enumerate(batch.prompts) if address_of(prompt).group not in self.learned_uids]
        return batch if len(own) == len(batch.prompts) else batch.part(own)

    def learn(self, batch: Batch) -> None:
        """Learn from a finished ``batch``, but not from the same prompt again."""
        if (own := self.unlearned(batch)).prompts:
            self.allocation.observe(own)

    def _advance(self, round: AllocationRound, planned: PlannedBatch) -> None:
        """Request the next wave of ``planned``, or finish it if the allocator plans no more."""
        allocator = self.allocation.allocator
        while (plan := self._plan(planned)).fresh:
            planned.batch = planned.batch.join(allocator.start(self._draw(round, planned, plan.fresh)))
        if not plan:
            self._finish(round, planned)
            return
        final = self._final(planned, plan)
        self._keep_counts(planned, planned.batch.asked + plan.counts, np.flatnonzero(final))
        for q in planned.begin(plan, final):
            self._request(round, planned, q, int(plan.counts[q]))
        self._finish_early(round, planned, planned.members)

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

    def _keep_counts(self, planned: PlannedBatch, counts: Counts, final: Iterable[int]) -> None:
        """Keep the ``counts`` of ``final`` prompts under a budget that no fresh prompts can share."""
        allocator, batch = self.allocation.allocator, planned.batch
        if not allocator.separable and not allocator.size(batch.started).fresh:
            self.given.update({address_of(batch.prompts[q]).uid: int(counts[q]) for q in final})

    def _draw(self, round: AllocationRound, planned: PlannedBatch, count: int) -> list[Prompt]:
        """Draw ``count`` extra prompts, and spread them evenly over the uids of ``planned``."""
        if self.extra_prompts is None:
            raise ValueError(f"{self.allocation.allocator.name} draws fresh prompts, and there is no data set of them")
        found, uids = [], uids_of(planned.batch.prompts)
        for prompt in self.extra_prompts.draw(count, {prompt.id for prompt in planned.batch.prompts}):
            uid = uids[round.extra.total() % len(uids)]
            round.extra[uid] += 1
            n = round.extra[uid]
            found.append(replace(prompt, data=RowAddress(f"{uid}.{n}", uid, n * SESSIONS_PER_PROMPT, prompt.data)))
        return found

    def _request(self, round: AllocationRound, planned: PlannedBatch, q: int, count: int, attempt: int = 0) -> None:
        """Request ``count`` rollouts of prompt ``q``, as new sessions."""
        task = rollout_task(self.allocation, round, address_of(planned.batch.prompts[q]), planned.answers(q), count)
        self.submit(PendingTask(round, task, planned, q, attempt))

    def _finish_early(self, round: AllocationRound, planned: PlannedBatch, uids: Iterable[str]) -> None:
        """Commit those of ``uids`` that nothing can change any more, once the round has something to train on."""
        for uid in filter(planned.ends_early, uids):
            batch = planned.so_far(uid)
            check_readable(self.allocation, batch)
            planned.early.add(uid)
            alone = [batch.part([q]) for q in range(len(batch.prompts))]
            groups = [group for own in alone for group in self.allocation.allocator.groups(own)]
            self._withhold(round, planned, batch, groups)
        if round.trainable:
            self._commit(round)

    def _withhold(self, round: AllocationRound, planned: PlannedBatch, batch: Batch, groups: Iterable[Group]) -> None:
        """Hold finished prompts back until the round has something to train on, which they may have themselves."""
        planned.history = planned.history or history_of(self.allocation, planned.batch)
        finished = FinishedPrompts(batch, tuple(groups), planned.history)
        round.trainable = round.trainable or finished.trainable
        round.withheld.append(finished)

    def _finish(self, round: AllocationRound, planned: PlannedBatch) -> None:
        """Commit ``planned`` once the round has something to train on. After the last batch, learn from the round."""
        allocator, batch = self.allocation.allocator, planned.batch
        planned.groups = tuple(allocator.groups(batch))
        late = [q for q, prompt in enumerate(batch.prompts) if address_of(prompt).uid not in planned.early]
        self._keep_counts(planned, batch.asked, late)
        groups = (group for group in planned.groups if address_of(group.prompt).uid not in planned.early)
        self._withhold(round, planned, batch.part(late) if planned.early else batch, groups)
        round.unfinished -= 1
        if not round.unfinished:  # learn before the trainer has the last uid, so before any round that depends on it
            batch = round.batch
            round.metrics = allocator.metrics(batch)
            self.learn(batch)
            round.closed = True
            self.end(round)
        if round.trainable or round.closed:
            self._commit(round)

    def _commit(self, round: AllocationRound) -> None:
        """Commit what is withheld. If the whole round has nothing to train on, add a group of one rollout."""
        if not round.trainable and (single := single_rollout_group(round.batch)) is not None:
            (own,) = [each for each in round.withheld if address_of(single.prompt).uid in each.uids]
            own.groups += (single,)
            baseline, weight = own.history[single.prompt.id]
            if baseline is not None:  # it has no signal
                own.history = {**own.history, single.prompt.id: (float(single.rewards[0]), weight)}
            round.trainable = True
            round.counts["empty_rounds"] += 1
        finished, round.withheld = round.withheld, []
        round.sent += finished
        for each in finished:
            commit(self.allocation, round, each, self.submit)


def rollout_task(
    allocation: VerlAllocation, round: AllocationRound, address: RowAddress, answers: Iterable[str], count: int = 1
) -> RolloutTask:
    """Return the task of sampling ``count`` rollouts as the next sessions of a group of ``round``.

    Without labels it has the distinct ``answers`` so far.
    """
    first, limit = address.first_session + round.sessions[address.group], allocation.deadline_seconds
    round.sessions[address.group] += count
    sessions, seconds = tuple(range(first, first + count)), None if math.isinf(limit) else limit
    known = tuple(answers) if allocation.label_free else ()
    return RolloutTask(f"{address.group}:{first}", address, sessions, seconds, known)


def commit(
    allocation: VerlAllocation, round: AllocationRound, finished: FinishedPrompts, submit: Callable[[PendingTask], None]
) -> None:
    """Have the trainer find the rows of ``finished`` prompts of ``round``."""
    for task in commit_tasks(finished, round.sessions, rewarded=allocation.label_free):
        submit(PendingTask(round, task))


def check_readable(allocation: VerlAllocation, batch: Batch) -> None:
    """Raise ValueError unless all that learns from ``batch`` can read its rewards."""
    with naming_the_verdict():
        for reader in allocation.parts.values():
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


def history_of(allocation: VerlAllocation, batch: Batch) -> History:
    """Return the baselines of the prompts of ``batch``, from earlier rounds alone, and their weights in the loss."""
    prompts, baseline = batch.prompts, allocation.baseline
    baselines = [None] * len(prompts) if baseline is None else baseline.predict(prompts).tolist()
    weights = None if allocation.selection is None else allocation.selection.weights(prompts)
    each = zip(baselines, (np.ones(len(prompts)) if weights is None else weights).tolist(), strict=True)
    return dict(zip((prompt.id for prompt in prompts), each, strict=True))
