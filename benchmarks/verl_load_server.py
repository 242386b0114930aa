"""The class whose handle the clients hold. It imports verl in its own process only.

A process that holds an actor's handle imports the actor's class. verl takes seconds to import, and the clients do not
need it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from apportion.verl.coordinator.messages import TaskResult, TrainerRequest


class Server:
    """Passes every call on to a ``LoadedActor``."""

    def __init__(self, *arguments: Any) -> None:
        from benchmarks.verl_load_actor import LoadedActor  # noqa: PLC0415 - imports verl

        self._actor = LoadedActor(*arguments)

    async def begin(self, allocation: Any) -> None:
        """Start a new coordinator with ``allocation``, or one that decides nothing if it is None."""
        await self._actor.begin(allocation)

    async def open(self, request: TrainerRequest, chunks: list[Any]) -> None:
        """Begin ``request``."""
        await self._actor.open(request, chunks)

    async def receive(self, reports: Sequence[TaskResult]) -> None:
        """Take reports of workers."""
        await self._actor.receive(reports)

    async def over(self) -> None:
        """Return when the request is over."""
        await self._actor.over()

    async def spent(self) -> tuple[int, int, float]:
        """Return the number of reports, the number of calls, and processor seconds so far."""
        return self._actor.reports, self._actor.calls, time.process_time()
