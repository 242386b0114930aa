"""Messages that are sent together: those that come up while others are on their way leave in one call after them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Outbox(Generic[T]):
    """Sends what is ``put`` in it, in order; alone where nothing is on its way, so that no time is lost by waiting.

    ``send`` takes a list. What it raises is given to ``failed`` with that list and all that waits.
    """

    def __init__(
        self, send: Callable[[list[T]], Awaitable[None]], failed: Callable[[list[T], Exception], None]
    ) -> None:
        self._send, self._failed = send, failed
        self._waiting: list[T] = []
        self._task: asyncio.Task[None] | None = None

    def put(self, message: T) -> None:
        """Sends ``message`` as soon as may be."""
        self._waiting.append(message)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        while self._waiting:
            leaving, self._waiting = self._waiting, []
            try:
                await self._send(leaving)
            except Exception as error:  # noqa: BLE001 - whatever it is, its messages must not be lost in silence
                lost, self._waiting = leaving + self._waiting, []
                self._failed(lost, error)
