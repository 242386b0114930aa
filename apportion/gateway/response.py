"""The response to one request: it waits for the vote, keeps a stream alive, and stops all if the client leaves.

A stream begins when the vote ends or after ``keep_alive_seconds``, whichever is first. So most errors have their own
status. Later ones are an event with an error, as OpenAI sends it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from apportion.gateway.errors import GatewayError
from apportion.gateway.replies import KEEP_ALIVE, encode, event, events, headers_of

logger = logging.getLogger("apportion.gateway")

JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}


class VoteResponse(Response):
    """Sends what ``vote`` returns, as one object or as a stream.

    Args:
        vote: holds the vote and returns the reply. Raises GatewayError.
        stream: whether the client asked for a stream.
        include_usage: whether a stream ends with the usage.
        keep_alive_seconds: time between two comments in a stream.
    """

    def __init__(
        self,
        vote: Callable[[], Awaitable[dict[str, Any]]],
        stream: bool,
        include_usage: bool,
        keep_alive_seconds: float,
    ) -> None:
        super().__init__()
        self._vote = vote
        self._stream = stream
        self._include_usage = include_usage
        self._keep_alive_seconds = keep_alive_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request whose body was read already."""
        started = time.monotonic()
        vote, gone = asyncio.ensure_future(self._vote()), asyncio.ensure_future(_gone(receive))
        try:
            status = await self._answer(vote, gone, send)
        finally:
            for task in (vote, gone):
                task.cancel()
            await asyncio.gather(vote, gone, return_exceptions=True)
        logger.info("%s after %.2f s", status, time.monotonic() - started)

    async def _answer(self, vote: asyncio.Future[dict[str, Any]], gone: asyncio.Future[None], send: Send) -> str:
        """Send the reply, and return what is logged about it."""
        either: set[asyncio.Future[Any]] = {vote, gone}
        begun, wait = False, self._keep_alive_seconds if self._stream else None
        while not vote.done():
            await asyncio.wait(either, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                return "499 the client left"
            if not vote.done():
                if not begun:
                    await _start(send, 200, EVENTS)
                begun = True
                await _body(send, KEEP_ALIVE, more=True)
        try:
            reply = vote.result()
        except GatewayError as error:
            if begun:
                await _body(send, event(error.body()))
            else:
                await _whole(send, error.status, error.headers(), encode(error.body()))
            return f"{error.status} {error.code or error.kind}"
        ballot = reply["apportion"]
        if self._stream:
            if not begun:
                await _start(send, 200, EVENTS | headers_of(ballot))
            for each in events(reply, self._include_usage):
                await _body(send, each, more=True)
            await _body(send, b"")
        else:
            await _whole(send, 200, headers_of(ballot), encode(reply))
        return f"200 {ballot['samples']} samples, stopped by {ballot['stopped']}"


async def _gone(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _whole(send: Send, status: int, headers: dict[str, str], body: bytes) -> None:
    await _start(send, status, {**JSON, **headers, "content-length": str(len(body))})
    await _body(send, body)


async def _start(send: Send, status: int, headers: dict[str, str]) -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def _body(send: Send, body: bytes, more: bool = False) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})
