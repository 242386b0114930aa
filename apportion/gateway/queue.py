"""The queue of requests: a bounded number of votes at the same time, and a bounded number of requests that wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from apportion.gateway.errors import LIMIT, SERVER, GatewayError

RETRY_SECONDS = 5
"""Seconds in Retry-After for a full queue. OpenAI's clients ignore more than 60 s."""


class VoteQueue:
    """Lets ``running`` votes run at once, and ``waiting`` wait for at most ``seconds`` each, in order of arrival."""

    def __init__(self, running: int, waiting: int, seconds: float) -> None:
        self.running = 0
        self.waiting = 0
        self.closed = False
        self._most = (running, waiting)
        self._seconds = seconds
        self._slots = asyncio.Semaphore(running)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and hold it for a block.

        Raises GatewayError: 429 if too many wait or the wait was too long, 503 after ``close``.
        """
        await self._wait()
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._slots.release()

    def close(self) -> None:
        """Refuse new requests, and those that wait as soon as it is their turn."""
        self.closed = True

    async def _wait(self) -> None:
        self._check_open()
        if self._slots.locked() and self.waiting >= self._most[1]:
            raise self._full(f"{self.running} votes run and {self.waiting} requests wait already")
        self.waiting += 1
        try:
            async with asyncio.timeout(self._seconds):
                await self._slots.acquire()
        except TimeoutError:
            raise self._full(f"no vote ended within {self._seconds:g} s") from None
        finally:
            self.waiting -= 1
        if self.closed:
            self._slots.release()
            self._check_open()

    def _check_open(self) -> None:
        if self.closed:
            raise GatewayError(503, "the gateway is shutting down; try again later", kind=SERVER, code="shutting_down")

    def _full(self, problem: str) -> GatewayError:
        said = f"the queue is full: {problem}; try again later"
        return GatewayError(429, said, kind=LIMIT, code="queue_full", retry_after=RETRY_SECONDS)
