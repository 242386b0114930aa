"""A stream in place of rounds: who gets the next free slot, and what an asynchronous trainer takes.

The trainer hands over prompts as before. They wait here until the stream opens them. Each group is committed when it
is finished. An update is what the stream takes, and the allocator learns from it when the trainer asks for the next.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from apportion.predictors.saved import SavedValues
from apportion.runs.declared_types import fits
from apportion.scheduler import OfferedScheduler, Ticket, Update
from apportion.verl.coordinator.messages import RowAddress, TaskResult, TrainerRequest, TrainerUpdate, address_of
from apportion.verl.coordinator.planner import check_readable, commit, history_of, naming_the_verdict, rollout_task
from apportion.verl.coordinator.rounds import AllocationRound, FinishedPrompts, PendingTask, PlannedBatch
from apportion.verl.coordinator.settings import VerlAllocation


@dataclass(eq=False)
class OpenPrompt:
    """A prompt of the trainer that the stream has opened. It is ``finished`` once it is committed.

    ``answers`` are the distinct ones without labels, in order of arrival.
    """

    uid: str
    answers: dict[str, None] = field(default_factory=dict)
    finished: FinishedPrompts | None = None


@dataclass
class StreamedPlanner:
    """Plans for ``Coordinator`` in place of ``Planner``. It hands tasks to ``submit`` and does not wait for them.

    It calls ``end`` with what an update was trained on, as a round.

    ``given`` has the rollouts that were granted to prompts in flight at a checkpoint, by uid. A resumed run requests
    them again, and they get the same number.
    """

    allocation: VerlAllocation
    stream: OfferedScheduler
    submit: Callable[[PendingTask], None]
    end: Callable[[AllocationRound], None]
    given: dict[str, int] = field(default_factory=dict)
    _rounds: dict[str, AllocationRound] = field(default_factory=dict)
    _prompts: dict[int, OpenPrompt] = field(default_factory=dict)
    _waiting: dict[str, deque[str]] = field(default_factory=dict)
    _tickets: dict[str, Ticket] = field(default_factory=dict)
    _restored: dict[str, int] = field(default_factory=dict)
    _update: Update | None = None
    _taken: bool = False
    step: int = 0
    _adopted: tuple[str, ...] = ()
    _next: AllocationRound = field(default_factory=lambda: AllocationRound(TrainerRequest(0), {}))
    _ages: list[int] = field(default_factory=list)
    _idle: float = 0.0
    _passed: float = 0.0
    _measured: float = field(default_factory=time.monotonic)

    def start(self, round: AllocationRound) -> None:
        """Take the prompts of ``round``. Request rollouts if slots are free."""
        self.step = round.request.step
        for prompt in round.request.prompts:
            uid = address_of(prompt).uid
            if uid in self._restored:  # it finished after the trainer had saved its queue
                self._withdraw([self._restored.pop(uid)])
            self._rounds[uid] = round
            self._waiting.setdefault(prompt.id, deque()).append(uid)
            self.stream.source.offer(prompt.id, self.given.pop(uid, None))
        self._fill()

    def receive(self, pending: PendingTask, result: TaskResult) -> None:
        """Take the rollout of ``result``. Raise RuntimeError for a fault of the set-up."""
        self._next.count(pending.round.worker[pending.task.uid], result)
        ticket = self._tickets.pop(result.id)
        rollout = result.rollouts[0] if result.rollouts else None
        if rollout is not None and rollout.answer is not None:
            self._prompts[ticket.unit].answers[rollout.answer] = None
        if rollout is None and result.expired:
            self.stream.gave_up(ticket)
        else:
            again = self.stream.counts["again"]
            with naming_the_verdict():
                self.stream.arrived(ticket, rollout)
            self._next.counts["retried"] += self.stream.counts["again"] - again
        self._fill()

    def committed(self, uid: str) -> None:
        """Note that the trainer can find the rows of ``uid``."""
        self._rounds.pop(uid, None)

    def trained(self) -> None:
        """Learn from the update that the trainer has taken, if there is one.

        The trainer asks for the next one, saves or logs, so it has trained.
        """
        if self._update is None or not self._taken:
            return
        prompts = [self._prompts.pop(unit) for unit in self.stream.training]
        finished = [each.finished for each in prompts if each.finished is not None]
        self._next.request = TrainerRequest(self.step)
        self._next.batches = [PlannedBatch(each.batch, groups=each.groups) for each in finished]
        round, self._next = self._next, AllocationRound(TrainerRequest(0), {})
        round.metrics = self.allocation.allocator.metrics(round.batch)
        self.stream.trained(self.stream.version + 1)
        self._ages += self._update.ages
        self._update, self._taken = None, False
        for other in set(self._rounds.values()):
            round.counts["reassigned"] += other.counts.pop("reassigned", 0)
        self.end(round)
        self._fill()

    def update(self) -> TrainerUpdate:
        """Return the update that the trainer may take, empty as long as it is not ready."""
        if self._adopted:
            adopted, self._adopted = self._adopted, ()
            self.stream.took(len(adopted))
            return TrainerUpdate(adopted, wanted=self.stream.wanted())
        if self._update is None:
            self._fill()
        if self._update is None:
            return TrainerUpdate(wanted=self.stream.wanted())
        taken = [self._prompts[unit] for unit in self.stream.training]
        if any(each.uid in self._rounds for each in taken):  # not committed yet
            return TrainerUpdate()
        rows = {each.uid: each.finished is not None and each.finished.trainable for each in taken}
        with_rows, without = [uid for uid in rows if rows[uid]], [uid for uid in rows if not rows[uid]]
        self._taken, wanted = True, self.stream.wanted()
        if not with_rows:  # the data set has no other prompt, so there is nothing to train on
            self.trained()
        return TrainerUpdate(tuple(with_rows), tuple(without), wanted)

    def reconcile(self, finished: Collection[str]) -> None:
        """Compare with what the trainer's queue has ``finished``, after a run was resumed.

        What it lacks is forgotten. What is only there was committed after the state was saved: it is trained on, and
        nothing learns from it.
        """
        self._withdraw([unit for uid, unit in self._restored.items() if uid not in finished])
        self._restored.clear()
        known = {found.uid for found in self._prompts.values()} | self._rounds.keys()
        self._adopted = tuple(uid for uid in finished if uid not in known)

    def metrics(self) -> dict[str, float]:
        """Return the sizes of the stream, the ages of what was trained on, and the share of slots that were idle."""
        self._measure()
        found = {f"stream_{name}": float(size) for name, size in self.stream.sizes.items()}
        found["stream_carry"] = self.stream.carry
        if self._ages:
            found |= {"stream_age": sum(self._ages) / len(self._ages), "stream_oldest": float(max(self._ages))}
        if self.allocation.slots is not None and self._passed:
            found["slots_idle"] = self._idle / (self.allocation.slots * self._passed)
        self._ages, self._idle, self._passed = [], 0.0, 0.0
        return found

    def state(self) -> dict[str, Any]:
        """Return the stream for a checkpoint, without its rule and baseline, which the coordinator saves."""
        stream = self.stream.state_dict()
        del stream["rule"], stream["baseline"]
        return {"stream": stream, "uids": {unit: found.uid for unit, found in self._prompts.items()}}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore ``state``, after the rule. Prompts in flight are forgotten, because the trainer brings them again."""
        saved = SavedValues(state, "the stream of a coordinator", ["stream", "uids"])
        uids = saved.values["uids"]
        if not fits(uids, dict[int, str]):
            raise saved.refusal("uids", "a uid by unit")
        own, baseline = {"rule": self.allocation.allocator.state_dict()}, self.allocation.baseline
        if baseline is not None:
            own["baseline"] = baseline.state_dict()
        self.stream.load_state_dict({**saved.state("stream"), **own})
        self.stream.restarted()  # an update that was not taken is one again
        self.stream.source.waiting.clear()
        self._prompts = {unit: OpenPrompt(uid) for unit, uid in uids.items()}
        self._withdraw(self.stream.unfinished())
        for unit, found in self._prompts.items():
            found.finished = self._finished(unit, found.uid)
            self._restored[found.uid] = unit

    def _fill(self) -> None:
        """Request rollouts for free slots, commit what is finished, and keep an update that is ready."""
        self._measure()
        slots = self.allocation.slots
        free = (1 << 62) if slots is None else slots - len(self._tickets)
        decision = self.stream.decide(free, time.monotonic())
        self._update = decision.update or self._update
        for ticket in decision.requests:
            self._request(ticket)
        for unit in self.stream.ended:
            if (found := self._prompts.get(unit)) is None or found.finished is None:
                self._commit(unit)

    def _request(self, ticket: Ticket) -> None:
        found = self._prompt(ticket.unit, ticket.prompt.id)
        round = self._rounds[found.uid]
        task = rollout_task(self.allocation, round, RowAddress(found.uid, found.uid), found.answers)
        self._tickets[task.id] = ticket
        self.submit(PendingTask(round, task))

    def _commit(self, unit: int) -> None:
        """Have the trainer find the rows of a prompt that is finished."""
        found = self._prompt(unit, self.stream.batch(unit).prompts[0].id)
        found.finished = finished = self._finished(unit, found.uid)
        check_readable(self.allocation, finished.batch)
        commit(self.allocation, self._rounds[found.uid], finished, self.submit)

    def _finished(self, unit: int, uid: str) -> FinishedPrompts:
        """Return the finished prompt of ``unit`` with the address of its rows."""
        batch = self.stream.batch(unit)
        batch = replace(batch, prompts=(replace(batch.prompts[0], data=RowAddress(uid, uid)),))
        groups = tuple(self.allocation.allocator.groups(batch))
        return FinishedPrompts(batch, groups, history_of(self.allocation, batch))

    def _prompt(self, unit: int, id: str) -> OpenPrompt:
        """Return the trainer's prompt of ``unit``. Prompts of one ``id`` are opened in the order of their coming."""
        if unit not in self._prompts:
            self._prompts[unit] = OpenPrompt(self._waiting[id].popleft())
            if not self._waiting[id]:
                del self._waiting[id]
        return self._prompts[unit]

    def _withdraw(self, units: Collection[int]) -> None:
        granted = self.stream.withdraw(units)
        for unit in units:
            uid = self._prompts.pop(unit).uid
            if unit in granted:
                self.given[uid] = granted[unit]

    def _measure(self) -> None:
        """Add up the slots that were idle since the last look."""
        now = time.monotonic()
        passed, self._measured = now - self._measured, now
        self._idle += ((self.allocation.slots or 0) - len(self._tickets)) * passed
        self._passed += passed
