"""A stream in place of rounds: who gets the next free slot, and what an asynchronous trainer takes.

The trainer hands over prompts as before. They wait here until the stream opens them. Each group is committed when it
is finished. An update is what the stream takes, and the allocator learns from it when the trainer asks for the next.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from apportion.predictors.saved import SavedValues
from apportion.runs.declared_types import fits
from apportion.scheduler import OfferedScheduler, Ticket, Update
from apportion.verl.coordinator.commits import FinishedPrompts
from apportion.verl.coordinator.messages import RowAddress, TaskResult, TrainerUpdate, address_of
from apportion.verl.coordinator.planner import Learned, OpenRequest, Planner


@dataclass
class StreamedPlanner(Planner):
    """Plans by a ``stream``, which is the scheduler of the run. The trainer takes its updates.

    ``given`` has the rollouts that were granted to prompts in flight at a checkpoint.
    """

    stream: OfferedScheduler

    def __post_init__(self) -> None:
        self._requests: dict[str, OpenRequest] = {}  # by the uids that are not committed
        self._uids: dict[int, str] = {}  # by unit
        self._finished = set[int]()  # units
        self._waiting: dict[str, deque[str]] = {}  # uids by prompt id, in the order of their coming
        self._restored: dict[str, int] = {}  # units by the uids that were finished at a checkpoint
        self._running = 0
        self._ready: Update | None = None
        self._taken: Update | None = None
        self._adopted: tuple[str, ...] = ()
        self._ages: list[int] = []

    def start(self, opened: OpenRequest) -> None:
        """Take the prompts of a request. Request rollouts if slots are free."""
        for prompt in opened.request.prompts:
            uid = address_of(prompt).uid
            if uid in self._restored:  # it finished after the trainer had saved its queue
                self._withdraw([self._restored.pop(uid)])
            self._requests[uid] = opened
            self._waiting.setdefault(prompt.id, deque()).append(uid)
            self.stream.source.offer(prompt.id, self.given.pop(uid, None))
        self._fill()

    def committed(self, uid: str) -> None:
        """Note that the trainer can find the rows of ``uid``."""
        del self._requests[uid]

    def next_update(self, done: bool, queue: Collection[str] | None) -> TrainerUpdate:
        """Return the next update for the trainer, empty until one is ready. The last one counts as trained."""
        if queue is not None:
            self._reconcile(queue)
        if done:
            self._learn()
        if self._adopted:
            adopted, self._adopted = self._adopted, ()
            self.stream.due.took(len(adopted))
            self.stream.version += 1
            return TrainerUpdate(adopted, wanted=self.stream.wanted())
        if self._ready is None:
            self._fill()
        update, units = self._ready, self.stream.training
        if update is None or any(self._uids[unit] in self._requests for unit in units):  # not committed yet
            return TrainerUpdate(wanted=self.stream.wanted() if update is None else 0)
        own = {group.prompt.id for group in update.groups if group.keep.any()}
        ids = {self._uids[unit]: self.stream.batch(unit).prompts[0].id for unit in units}
        uids, dropped = (tuple(uid for uid, id in ids.items() if (id in own) == there) for there in (True, False))
        self._taken, self._ready, wanted = update, None, self.stream.wanted()
        if not uids:  # the data set has no other prompt, so there is nothing to train on
            self._learn()
        return TrainerUpdate(uids, dropped, wanted)

    def _learn(self) -> None:
        """Learn from the update that the trainer has taken, if there is one."""
        if (update := self._taken) is None:
            return
        metrics = self.allocation.allocator.metrics(update.batch)
        for unit in self.stream.training:
            del self._uids[unit]
            self._finished.remove(unit)
        self.stream.trained(self.stream.version + 1)  # adopted ones count too
        self._ages += update.ages
        self._taken = None
        self.end(Learned(update.batch, update.groups, metrics))
        self._fill()

    def _reconcile(self, finished: Collection[str]) -> None:
        """Compare with what the trainer's queue has ``finished``, after a resume.

        What it lacks is forgotten. What is only there was committed after the state was saved: it is trained on, and
        nothing learns from it.
        """
        self._withdraw([unit for uid, unit in self._restored.items() if uid not in finished])
        self._restored.clear()
        known = {*self._uids.values(), *self._requests}
        self._adopted = tuple(uid for uid in finished if uid not in known)

    def metrics(self) -> dict[str, float]:
        """Return the sizes of the stream, and the ages of what was trained on."""
        self._learn()
        stream = self.stream
        found = {"stream_offered": float(len(stream.source.waiting)), "stream_open": float(len(stream.unfinished()))}
        found |= {"stream_ready": float(stream.ready), "stream_carry": stream.carry}
        if self._ages:
            found |= {"stream_age": sum(self._ages) / len(self._ages), "stream_oldest": float(max(self._ages))}
        self._ages = []
        return found

    def state(self) -> dict[str, Any]:
        """Return the stream too, without its rule and baseline, which the coordinator saves."""
        self._learn()
        stream = self.stream.state_dict()
        del stream["rule"], stream["baseline"]
        return super().state() | {"stream": {"stream": stream, "uids": dict(self._uids)}}

    def load(self, saved: SavedValues) -> None:
        """Restore the stream, after the rule.

        Prompts in flight are forgotten, because the trainer brings them again.
        """
        super().load(saved)
        if saved.values["stream"] is None:
            return
        own = SavedValues(saved.state("stream"), "the stream of a coordinator", ["stream", "uids"])
        uids = own.values["uids"]
        if not fits(uids, dict[int, str]):
            raise own.refusal("uids", "a uid by unit")
        learned, baseline = {"rule": self.allocation.allocator.state_dict()}, self.allocation.baseline
        if baseline is not None:
            learned["baseline"] = baseline.state_dict()
        self.stream.load_state_dict({**own.state("stream"), **learned})
        self.stream.restarted()  # an update that was not taken is one again
        self.stream.source.waiting.clear()
        self._uids = dict(uids)
        self._withdraw(self.stream.unfinished())
        self._finished = set(self._uids)
        self._restored = {uid: unit for unit, uid in self._uids.items()}

    def _fill(self) -> None:
        """Request rollouts for free slots, commit what is finished, and keep an update that is ready."""
        slots = self.allocation.slots
        decision = self.stream.decide((1 << 62) if slots is None else slots - self._running, 0.0)
        self._ready = decision.update or self._ready
        self._running += len(decision.requests)
        for ticket in decision.requests:
            uid = self._uid(ticket.unit, ticket.prompt.id)
            self.request(self._requests[uid], RowAddress(uid, uid), 1, partial(self._receive, ticket))
        for unit in self.stream.ended:
            if unit not in self._finished:
                self._finished.add(unit)
                self._commit(unit)

    def _receive(self, ticket: Ticket, result: TaskResult) -> None:
        """Take the rollout of ``result``. Raise RuntimeError for a fault of the set-up."""
        self._running -= 1
        if result.expired and not result.rollouts:
            self.stream.gave_up(ticket)
        else:
            again = self.stream.counts["again"]
            self.stream.arrived(ticket, result.rollouts[0] if result.rollouts else None)
            self.counts["retried"] += self.stream.counts["again"] - again
        self._fill()

    def _commit(self, unit: int) -> None:
        """Commit the finished prompt of ``unit``."""
        batch = self.stream.batch(unit)
        uid = self._uid(unit, batch.prompts[0].id)
        batch = replace(batch, prompts=(replace(batch.prompts[0], data=RowAddress(uid, uid)),))
        groups = self.allocation.allocator.groups(batch)
        self.commit(self._requests[uid], FinishedPrompts(batch, groups, self.history(batch.prompts)))

    def _uid(self, unit: int, id: str) -> str:
        """Return the uid of ``unit``. Prompts with the same ``id`` are opened in the order in which they came."""
        if unit not in self._uids:
            self._uids[unit] = self._waiting[id].popleft()
            if not self._waiting[id]:
                del self._waiting[id]
        return self._uids[unit]

    def _withdraw(self, units: Collection[int]) -> None:
        granted = self.stream.withdraw(units)
        for unit in units:
            uid = self._uids.pop(unit)
            self._finished.discard(unit)
            if unit in granted:
                self.given[uid] = granted[unit]
