"""Replies to clients: one JSON object, or the events of a stream, with the ballot in ``apportion`` and in headers.

A stream begins when the vote ends or after ``keep_alive_seconds``, whichever is first. So most errors have their own
status. Later ones are an event with an error, as OpenAI sends it. If the client leaves, the vote is cancelled.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from apportion.gateway.errors import GatewayError
from apportion.gateway.upstream import Bill
from apportion.gateway.vote import RunningVote

logger = logging.getLogger("apportion.gateway")

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
    chosen = [*vote.chosen().values()]
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


async def respond(
    request: Request, vote: asyncio.Task[dict[str, Any]], stream: bool, include_usage: bool, keep_alive_seconds: float
) -> Response:
    """Return the response to a request whose body was read already: what ``vote`` returns, as an object or a stream.

    ``include_usage`` ends a stream with the usage. ``keep_alive_seconds`` is the time between two comments in a stream.
    Raises the GatewayError of a vote that fails before its stream begins.
    """
    started, gone = time.monotonic(), asyncio.create_task(_gone(request.receive))
    vote.add_done_callback(lambda _: logger.info("%s after %.2f s", _said(vote), time.monotonic() - started))
    wait = keep_alive_seconds if stream else None
    try:
        await asyncio.wait({vote, gone}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
        if not vote.done() and not gone.done():
            return VoteStream(vote, include_usage, keep_alive_seconds)
    except asyncio.CancelledError:
        await _end(vote)
        raise
    finally:
        await _end(gone)
    if not vote.done():
        await _end(vote)
        return Response(status_code=499)  # the client has left
    reply = vote.result()
    headers = headers_of(reply["apportion"])
    if stream:
        return Response(b"".join(events(reply, include_usage)), headers=EVENTS | headers)
    return Response(encode(reply), headers=headers, media_type="application/json")


class VoteStream(StreamingResponse):
    """Sends comments until ``vote`` ends, and then its reply or an error. If the client leaves, the vote is cancelled.

    The arguments are those of ``respond``.
    """

    def __init__(self, vote: asyncio.Task[dict[str, Any]], include_usage: bool, keep_alive_seconds: float) -> None:
        super().__init__(self._events(vote, include_usage, keep_alive_seconds), headers=EVENTS)
        self.vote = vote

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await _end(self.vote)

    @staticmethod
    async def _events(
        vote: asyncio.Task[dict[str, Any]], include_usage: bool, keep_alive_seconds: float
    ) -> AsyncIterator[bytes]:
        while not vote.done():
            yield KEEP_ALIVE
            await asyncio.wait({vote}, timeout=keep_alive_seconds)
        try:
            for each in events(vote.result(), include_usage):
                yield each
        except GatewayError as error:
            yield event(error.body())


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})


def _said(vote: asyncio.Task[dict[str, Any]]) -> str:
    """Return the log line of an ended vote."""
    if vote.cancelled():
        return "499 the client left"
    if error := vote.exception():
        return f"{error.status} {error.code or error.kind}" if isinstance(error, GatewayError) else "500"
    ballot = vote.result()["apportion"]
    return f"200 {ballot['samples']} samples, stopped by {ballot['stopped']}"


async def _gone(receive: Receive) -> None:
    """Return as soon as the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
