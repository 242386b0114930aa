"""A stream in an asyncio loop: the reference for engines that sample one request at a time."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable

from apportion.checks import check_integer
from apportion.loop import awaited
from apportion.scheduler.scheduler import Scheduler
from apportion.scheduler.values import Ticket, Update
from apportion.types import Rollout

LONGEST_WAIT = 1.0
"""Longest wait of ``stream_groups``, in seconds, between two looks at the clock, and for cancelled calls."""

Sample = Callable[[Ticket], Awaitable[Rollout | None]]
"""A request -> its rollout, or None if it failed, awaited."""


async def stream_groups(
    stream: Scheduler, sample: Sample, *, slots: int, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[Update]:
    """Yield each update of ``stream``, with at most ``slots`` calls of ``sample`` at a time.

    The update is done when the body calls ``stream.trained(update.version)``, or else when the next one is asked for:
    then the stream learns, and its version rises. Save ``stream.state_dict()`` between that call and the next update,
    with weights and optimizer. A loop over a stream that loaded the state goes on: what was being sampled is requested
    again, and no update is trained on twice.

    Sampling goes on while the body awaits. A trainer that blocks the loop stops it, so it should run in a thread. A
    call that takes longer than the stream's patience is cancelled and made again. All calls are cancelled when the loop
    is left. An error in ``sample`` is raised here. It ends when nothing is left to sample or to train on.

    >>> import asyncio
    >>> from apportion import Prompt, Uniform
    >>> from apportion.scheduler import Rows
    >>> async def sample(ticket):
    ...     return Rollout(ticket.rollout == 0)
    >>> async def train(updates):
    ...     stream = Scheduler(Uniform(4), [Prompt("a"), Prompt("b"), Prompt("c")], Rows(8))
    ...     async for update in stream_groups(stream, sample, slots=2):
    ...         if update.version == updates:
    ...             return [group.rewards.tolist() for group in update.groups]
    >>> asyncio.run(train(3))
    [[1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]
    """
    import asyncio  # noqa: PLC0415 - slow to import

    check_integer("slots", slots, 1, "an engine needs a slot")
    stream.check_trained()
    stream.restarted()
    running: dict[int, asyncio.Task[Rollout | None]] = {}
    tickets: dict[asyncio.Task[Rollout | None], Ticket] = {}
    failures: list[BaseException] = []
    changed = asyncio.Event()
    ready: list[Update] = []

    def fill() -> None:
        decision = stream.decide(slots - len(running), clock())
        for ticket in decision.cancelled:
            if (late := running.pop(ticket.number, None)) is not None:  # its slot is free, whether it ends or not
                late.cancel()
        for ticket in decision.requests:
            task = asyncio.ensure_future(awaited(sample, ticket))
            running[ticket.number], tickets[task] = task, ticket
            task.add_done_callback(ended)
        ready.extend([decision.update] if decision.update else [])

    def ended(task: asyncio.Task[Rollout | None]) -> None:
        ticket = tickets.pop(task)
        running.pop(ticket.number, None)
        error = None if task.cancelled() else task.exception()
        try:
            if error is not None:
                failures.append(error)
            elif not closing:
                stream.arrived(ticket, None if task.cancelled() else task.result())
                fill()
        except Exception as wrong:  # noqa: BLE001 - raised below, where the caller sees it
            failures.append(wrong)
        changed.set()

    closing = False
    try:
        fill()
        while ready or running:
            if failures:
                raise failures[0]
            if ready:
                update = ready.pop()
                stream.lent = update.version
                yield update
                stream.trained(update.version)
                fill()
                continue
            changed.clear()
            wait = min(max(0.0, stream.deadline - clock()), LONGEST_WAIT)
            try:
                await asyncio.wait_for(changed.wait(), wait)
            except TimeoutError:
                fill()
        if failures:
            raise failures[0]
    finally:
        closing = True
        for task in tickets:
            task.cancel()
        if tickets:
            await asyncio.wait(list(tickets), timeout=LONGEST_WAIT)
