"""The one place that decides: it plans what the trainer dispatches, orders rollouts, publishes the groups, and learns.

No Ray here: what carries tasks to workers is a ``Crew``. A dispatch is a round with a budget of its own, so that what
verl adds later, for groups that its filter took out or that a restart lost, is allocated by itself. Prompts of a
separable allocator are batches of one and are published one by one; others wait for each other, up to a deadline.

Whatever happens is a record: it is journaled, then acted on, to the end, before the next. So all that is not in the
journal follows from it. A coordinator that is restarted takes the records again, in their order, and is then where the
last one was; what nobody answered yet it asks for again.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import TYPE_CHECKING, Any, Protocol

from apportion.integrations.spending import allocation_metrics
from apportion.integrations.verl.journal import Journal, Record
from apportion.integrations.verl.messages import Dispatch, Logged, Moved, Order, Publication, Report, Task
from apportion.integrations.verl.planner import Guests, Planner
from apportion.integrations.verl.publications import failure, without_reused, written_keys
from apportion.integrations.verl.rounds import Asked, Round
from apportion.types import Batch

if TYPE_CHECKING:  # settings.py takes verl, which nothing here needs
    from apportion.integrations.verl.settings import Allocation

logger = logging.getLogger(__name__)

GRACE_SECONDS = 60.0
"""How long a worker may stay silent beyond an order's deadline before its rollouts count as failed."""

COUNTED = ("retried", "errors", "expired", "moved", "fillers")
"""What ``metrics`` says of how the rounds went."""


class Crew(Protocol):
    """What carries tasks to the workers, by name. None of these waits, or calls the coordinator before it returns."""

    def send(self, worker: str, task: Task) -> None:
        """Has ``worker`` begin ``task``; its report comes later, or the worker is lost.

        "" is nobody: a publication is then carried out, and reported, by the crew itself. It is sent no order.
        """

    def move(self, worker: str, dispatch: Dispatch, hosts: Sequence[str]) -> bool:
        """Has ``worker`` take over the rows of ``hosts``; False where they are not at hand."""

    def forget(self, dispatch: Dispatch) -> None:
        """Lets go of the rows of ``dispatch``: all of it is published."""


def collect_rarely() -> None:
    """For a process that is a coordinator's alone: Python looks for cycles, of which there are hardly any, less often.

    It goes through all objects to find them, which are millions at 100,000 prompts, while everybody waits.
    """
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


@dataclass
class Coordinator:
    """Plans, orders, publishes, learns. ``guests`` draws prompts beyond the trainer's, where the allocator may."""

    allocation: Allocation
    crew: Crew
    journal: Journal
    guests: Guests | None = None
    error: str | None = None
    _rounds: dict[str, Round] = field(default_factory=dict)
    _asked: dict[str, Asked] = field(default_factory=dict)
    _ended: list[Round] = field(default_factory=list)
    _opened: str = ""
    _reported: deque[Report] = field(default_factory=deque)
    _timers: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    _live: bool = True

    def __post_init__(self) -> None:
        self._planner = Planner(self.allocation, self.guests, self._ask)

    @property
    def busy(self) -> bool:
        """Whether a round is under way."""
        return bool(self._rounds)

    def open(self, dispatch: Dispatch) -> None:
        """Begins a round, once: Ray calls again where the coordinator died before it could say so.

        Raises RuntimeError where an earlier one ended in an error, ValueError for a size that cannot be planned.
        """
        if self.error is not None:
            raise RuntimeError(self.error)
        self.allocation.allocator.check(len(dispatch.prompts))
        if dispatch.prompts and dispatch.name != self._opened:
            self._record(dispatch)

    def report(self, reports: Sequence[Report]) -> None:
        """Takes reports of any number of tasks, in any order; those that nobody waits for are left aside."""
        awaited = tuple(report for report in reports if report.id in self._asked)
        if awaited:
            self._record(awaited)

    def lost(self, worker: str, others: Sequence[str]) -> None:
        """Gives what ``worker`` held, which died, to ``others`` that live, in turn.

        Rollouts under way begin anew there. Where the rows are not at hand any more, or nobody lives, they have failed.
        """
        turns, found = cycle(others or [""]), dict[str, list[str]]()
        for round in self._rounds.values():
            given: dict[str, list[str]] = {}
            for host, holder in round.worker.items():
                if holder == worker:
                    given.setdefault(next(turns), []).append(host)
            for other, hosts in given.items():
                at_hand = other != "" and self.crew.move(other, round.dispatch, hosts)
                found.setdefault(other if at_hand else "", []).extend(hosts)
        for holder, hosts in found.items():
            self._record(Moved(tuple(hosts), holder))

    def metrics(self) -> dict[str, float]:
        """How the rollouts of the rounds that ended since the last call were spent; {} where none did.

        Raises RuntimeError where one ended in an error.
        """
        if self.error is not None:
            raise RuntimeError(self.error)
        ended = self._ended
        if not ended:
            return {}
        self._record(Logged())
        batch = Batch.concatenate([part.batch for round in ended for part in round.parts])
        found = allocation_metrics(batch, [group for round in ended for group in round.groups])
        own = {name: [round.said[name] for round in ended if name in round.said] for name in ended[-1].said}
        found |= {name: sum(values) / len(values) for name, values in own.items()}
        counts = sum((round.counts for round in ended), Counter[str]())
        return found | {"dispatches": float(len(ended))} | {name: float(counts[name]) for name in COUNTED}

    def state(self) -> dict[str, Any]:
        """What was learnt, for a checkpoint: the allocator's, and what is published of rounds that are under way.

        The journal begins anew from here.
        """
        self.journal.restart(self._snapshot())
        unfinished = [round.published for round in self._rounds.values() if not round.closed]
        return self._learnt() | {"unfinished": [batches for batches in unfinished if batches]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes over what ``state`` gave, of a run with the same allocator; raises ValueError for another's."""
        self._relearn(state)
        for batches in state["unfinished"]:
            self.allocation.allocator.observe(Batch.concatenate(batches))
        self.journal.restart(self._snapshot())

    def replay(self) -> None:
        """Takes up what the journal holds, after a restart."""
        snapshot, records = self.journal.resume()
        if snapshot is not None:
            self._restore(snapshot)
        self._live = False
        for record in records:
            self._act(record)
        self._live = True
        for asked in self._asked.values():
            self._send(asked)

    def _record(self, record: Record) -> None:
        """Notes what happened, then acts on it."""
        self.journal.write(record)
        self._act(record)
        if self.journal.large:
            self.journal.restart(self._snapshot())

    def _act(self, record: Record) -> None:
        if isinstance(record, Dispatch):
            self._begin(record)
        elif isinstance(record, Moved):
            self._move(record)
        elif isinstance(record, Logged):
            self._ended = []
        else:
            self._reported.extend(record)
        while self._reported:
            self._take(self._reported.popleft())

    def _begin(self, dispatch: Dispatch) -> None:
        self._opened, round = dispatch.name, Round.of(dispatch)
        self._rounds[dispatch.name] = round
        self._go_on(round, self._planner.start, round)

    def _go_on(self, round: Round, act: Callable[..., None], *args: Any) -> None:
        """Has the planner ``act`` on a round, which ends where that raises."""
        try:
            act(*args)
        except Exception as error:  # noqa: BLE001 - raised in the trainer's process, which waits for the rows
            self._fail(round, error)
        else:
            if round.closed:
                self._ended.append(round)

    def _ask(self, asked: Asked) -> None:
        self._asked[asked.task.id] = asked
        self._send(asked)

    def _send(self, asked: Asked) -> None:
        """Has whoever holds the row begin a task; rollouts of a row that nobody holds have failed."""
        task, worker = asked.task, asked.round.worker[asked.task.host]
        if isinstance(task, Publication):
            if self._live:
                self.crew.send(worker, task if worker else without_reused(task))
        elif not worker:
            self._reported.append(Report(task.id, failures=(f"nobody holds {task.host}",), expired=True))
        elif self._live:
            self.crew.send(worker, task)
            self._time(task)

    def _time(self, order: Order) -> None:
        """Gives an order up that nobody reports in time."""
        self._untime(order.id)
        if order.seconds is not None:
            late = Report(order.id, failures=(f"no report of {order.id}",), expired=True)
            after = order.seconds + GRACE_SECONDS
            self._timers[order.id] = asyncio.get_running_loop().call_later(after, self.report, [late])

    def _untime(self, id: str) -> None:
        timer = self._timers.pop(id, None)
        if timer is not None:
            timer.cancel()

    def _take(self, report: Report) -> None:
        """What follows from a report; the first of a task counts."""
        asked = self._asked.pop(report.id, None)
        if asked is None:
            return
        self._untime(report.id)
        if isinstance(asked.task, Publication):
            self._told(asked.round, asked.task.host, report)
        elif asked.part is not None:
            self._go_on(asked.round, self._planner.sampled, asked.round, asked.part, asked, report)

    def _told(self, round: Round, host: str, report: Report) -> None:
        """Ends what there is to do for a host that is published; the round, if it was the last."""
        if report.error is not None and not round.failed:
            self._fail(round, RuntimeError(report.error))
            return
        del round.worker[host]
        if round.closed and not round.worker:
            del self._rounds[round.dispatch.name]
            self.crew.forget(round.dispatch)

    def _move(self, moved: Moved) -> None:
        hosts = set(moved.hosts)
        for round in self._rounds.values():
            own = hosts & round.worker.keys()
            round.worker.update(dict.fromkeys(own, moved.worker))
            round.counts["moved"] += len(own) if moved.worker else 0
        for asked in [asked for asked in self._asked.values() if asked.task.host in hosts]:
            self._send(asked)

    def _fail(self, round: Round, error: Exception) -> None:
        """Says what went wrong, and ends the wait of the trainer for all that is not published."""
        said = f"allocation failed at step {round.dispatch.step}: {error}"
        logger.error(said, exc_info=error)
        self.error = self.error or said
        round.closed = round.failed = True
        for asked in [asked for asked in self._asked.values() if asked.round is round]:
            if isinstance(asked.task, Order):
                self._untime(asked.task.id)
                del self._asked[asked.task.id]
        told = {asked.task.host for asked in self._asked.values() if asked.round is round}
        written: dict[str, set[str]] = {}
        for part in round.parts:
            written |= written_keys(part.batch, part.hosts, round.sessions)
        for host in [host for host in round.worker if host not in told]:
            self._ask(Asked(round, failure(host, sorted(written.get(host, ())))))

    def _learnt(self) -> dict[str, Any]:
        allocator, drawn = self.allocation.allocator, 0 if self.guests is None else self.guests.drawn
        return {"name": allocator.name, "allocator": allocator.state_dict(), "drawn": drawn}

    def _relearn(self, state: Mapping[str, Any]) -> None:
        allocator = self.allocation.allocator
        if state["name"] != allocator.name:
            raise ValueError(
                f"a checkpoint must be of the same allocator, {allocator.name}, got that of {state['name']}; resume "
                "with that one, or start a new run from its weights"
            )
        allocator.load_state_dict(state["allocator"])
        if self.guests is not None:
            self.guests.drawn = state["drawn"]

    def _snapshot(self) -> dict[str, Any]:
        """All of a coordinator, for the journal."""
        names = ("error", "_rounds", "_asked", "_ended", "_opened")
        return {"learnt": self._learnt(), "own": {name: getattr(self, name) for name in names}}

    def _restore(self, snapshot: Mapping[str, Any]) -> None:
        self._relearn(snapshot["learnt"])
        for name, value in snapshot["own"].items():
            setattr(self, name, value)
