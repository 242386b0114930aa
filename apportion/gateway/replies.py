"""Replies to clients: one JSON object, or the events of a stream, with the ballot in ``apportion`` and in headers.

A stream begins when the vote ends or after ``keep_alive_seconds``, whichever is first. So most errors have their own
status. Later ones are an event with an error, as OpenAI sends it. If the client leaves, the vote is cancelled.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from apportion.gateway.errors import GatewayError
from apportion.gateway.upstream import Bill
from apportion.gateway.vote import RunningVote

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

logger = logging.getLogger("apportion.gateway")

JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}

KEEP_ALIVE = b": voting\n\n"
"""A comment, which clients of server-sent events skip."""
PIECE = 4096
"""Most characters of a text in one chunk, because some clients refuse long lines."""

DONE = b"data: [DONE]\n\n"

IN_HEADERS = ("samples", "share", "stopped", "rule", "unparsed", "failed", "cancelled", "disagreement")
"""Fields of the ballot that are headers too, except those that are null."""


def whole_reply(vote: RunningVote, bill: Bill) -> dict[str, Any]:
    """Return the reply of the first choice, as upstream sent it, with all choices, the usage of all samples, and the
    ballot.
    """
    chosen = [sample.reply for sample in vote.chosen() if sample.reply is not None]
    choices = [{**reply["choices"][0], "index": place} for place, reply in enumerate(chosen)]
    return {**chosen[0], "choices": choices, "usage": bill.usage, "apportion": vote.ballot(bill)}


def headers_of(ballot: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers that summarise ``ballot``.

    >>> headers_of({"samples": 6, "share": 1.0, "stopped": "rule", "disagreement": None})
    {'x-apportion-samples': '6', 'x-apportion-answer-share': '1', 'x-apportion-stopped': 'rule'}
    """
    named = {"share": "answer-share"}
    values = {named.get(name, name): ballot.get(name) for name in IN_HEADERS}
    return {f"x-apportion-{name}": _text(value) for name, value in values.items() if value is not None}


def events(reply: Mapping[str, Any], include_usage: bool) -> Iterator[bytes]:
    """Yield the events of a stream that hold ``reply``. The ballot is in the last chunk with choices."""
    shared = {name: value for name, value in reply.items() if name not in ("choices", "usage", "apportion")}
    shared |= {"object": "chat.completion.chunk"} | ({"usage": None} if include_usage else {})
    chunks = [chunk for choice in reply["choices"] for chunk in chunks_of(choice)]
    for chunk in chunks[:-1]:
        yield event({**shared, "choices": [chunk]})
    yield event({**shared, "choices": chunks[-1:], "apportion": reply["apportion"]})
    if include_usage:
        yield event({**shared, "choices": [], "usage": reply["usage"]})
    yield DONE


def chunks_of(choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the choices of the chunks that make ``choice``: its role, its message in pieces, and why it ended.

    >>> for chunk in chunks_of({"index": 0, "message": {"role": "assistant", "content": "4"}, "finish_reason": "stop"}):
    ...     print(chunk["delta"], chunk["finish_reason"])
    {'role': 'assistant', 'content': ''} None
    {'content': '4'} None
    {} stop
    """
    message, index = choice["message"], choice["index"]
    rest = {name: value for name, value in choice.items() if name not in ("message", "index", "finish_reason")}

    def chunk(delta: dict[str, Any], **fields: Any) -> dict[str, Any]:
        return {"index": index, "delta": delta, "finish_reason": None, **fields}

    yield chunk({"role": message.get("role", "assistant"), "content": "" if message.get("content") else None})
    for name, value in message.items():
        if name == "role" or value is None:
            continue
        if name == "tool_calls" and value:
            value = [{"index": place, **call} for place, call in enumerate(value)]
        pieces = _pieces(value) if isinstance(value, str) else [value]
        yield from (chunk({name: piece}) for piece in pieces)
    yield chunk({}, **rest) | {"finish_reason": choice.get("finish_reason")}


def _pieces(text: str) -> Iterator[str]:
    return (text[start : start + PIECE] for start in range(0, len(text), PIECE))


def event(data: Mapping[str, Any]) -> bytes:
    """Return one server-sent event."""
    return b"data: " + encode(data) + b"\n\n"


def encode(data: Mapping[str, Any]) -> bytes:
    """Return ``data`` as JSON. It is ASCII, because upstream text may hold what UTF-8 cannot."""
    return json.dumps(data).encode()


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass
class VoteResponse:
    """An ASGI response: it sends what ``vote`` returns, as one object or as a stream.

    Args:
        vote: holds the vote and returns the reply. Raises GatewayError.
        stream: whether the client asked for a stream.
        include_usage: whether a stream ends with the usage.
        keep_alive_seconds: time between two comments in a stream.
    """

    vote: Callable[[], Awaitable[dict[str, Any]]]
    stream: bool
    include_usage: bool
    keep_alive_seconds: float

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request whose body was read already."""
        started = time.monotonic()
        vote, gone = asyncio.ensure_future(self.vote()), asyncio.ensure_future(_gone(receive))
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
        begun, wait = False, self.keep_alive_seconds if self.stream else None
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
        if self.stream:
            if not begun:
                await _start(send, 200, EVENTS | headers_of(ballot))
            for each in events(reply, self.include_usage):
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
