"""Messages sent in batches: those that are put while a call is in progress leave together in the next call."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BatchedSender(Generic[T]):
    """Sends messages in order. A message is sent at once if no call is in progress.

    ``send`` takes a list of messages. If it raises, ``failed`` gets that list, all waiting messages and the error.
    """

    def __init__(
        self, send: Callable[[list[T]], Awaitable[None]], failed: Callable[[list[T], Exception], None]
    ) -> None:
        self._send, self._failed = send, failed
        self._waiting: list[T] = []
        self._task: asyncio.Task[None] | None = None

    def put(self, message: T) -> None:
        """Send ``message`` as soon as possible."""
        self._waiting.append(message)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        while self._waiting:
            leaving, self._waiting = self._waiting, []
            try:
                await self._send(leaving)
            except Exception as error:  # noqa: BLE001 - no message may be lost silently, whatever the error is
                lost, self._waiting = leaving + self._waiting, []
                self._failed(lost, error)
