"""An OpenAI-compatible server on loopback with scripted replies: valid ones, and every kind of failure.

    async with FaultServer([rate_limited(ms=10), cut_inside()]) as server:
        endpoint = Endpoint(server.url, "tiny")

The script is a list of behaviours, one a request in the order of arrival, followed by valid replies. It may also be one
behaviour for all requests, or a function from a request to its behaviour. The server keeps all requests, so that tests
can count them.
"""

import asyncio
import gzip
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from inspect import iscoroutinefunction
from typing import Any


@dataclass
class Request:
    """One request, its time of arrival and its fate.

    ``answered`` is set when the last byte was sent, ``left`` if the client disconnected before.
    """

    number: int
    time: float
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    answered: bool = False
    left: bool = False

    @property
    def prompt(self):
        return self.body["messages"][0]["content"] if "messages" in self.body else self.body["prompt"]

    @property
    def n(self):
        return self.body.get("n", 1)

    @property
    def seed(self):
        return self.body.get("seed")


Send = Callable[[bytes], Awaitable[None]]
Behaviour = Callable[[Request, Send], Awaitable[None]]
"""Sends the reply to a request. The connection is closed if the reply is incomplete."""


def seed_text(request, place):
    """Return the name of a sample: the seed of its request and its index."""
    return f"{request.seed}.{place}"


def ok(text=seed_text, *, most=None, delay=0.0, finish_reason="stop", tokens=5, headers=(), **message):
    """A valid reply after ``delay`` seconds: at most ``most`` choices of ``tokens`` each (None: no usage).

    ``text`` is that of all choices, or a function of the request and the index of a choice.
    """

    async def reply(request, send):
        await asyncio.sleep(delay)
        await send(http(200, reply_body(request, text, most, finish_reason, tokens, message), headers))

    return reply


def reply_body(request, text=seed_text, most=None, finish_reason="stop", tokens=5, message=None):
    choices = []
    for place in range(min(request.n, most or request.n)):
        content = text(request, place) if callable(text) else text
        inner = {"message": {"role": "assistant", "content": content, **(message or {})}}
        choice = {"text": content} if request.path.endswith("/completions") and "prompt" in request.body else inner
        choices.append({"index": place, "finish_reason": finish_reason, **choice})
    reply = {"id": "reply", "object": "completion", "model": request.body["model"], "choices": choices}
    if tokens is not None:
        reply["usage"] = {"prompt_tokens": len(request.prompt), "completion_tokens": tokens * len(choices)}
    return json.dumps(reply).encode()


def n_refused(status):
    """An error if n is above 1."""

    async def reply(request, send):
        await (refused(status, "only one completion is allowed") if request.n > 1 else ok())(request, send)

    return reply


def refused(status, message="no", headers=()):
    """An error with this status and message."""
    return raw(status, json.dumps({"error": {"message": message, "type": "error", "code": status}}).encode(), headers)


def raw(status, body, headers=(), kind="application/json"):
    """Any body, declared as JSON unless another ``kind`` is given."""
    return sent(http(status, body, headers, kind))


def sent(whole):
    """A whole HTTP reply."""

    async def reply(_, send):
        await send(whole)

    return reply


def broken(status=500, ms=10):
    """A server error that asks for a retry after ``ms`` milliseconds."""
    return refused(status, "the engine has crashed", [f"Retry-After-Ms: {ms}"])


def cut_before():
    """The connection is closed without a byte."""

    async def reply(_, send):
        raise ConnectionAbortedError

    return reply


def cut_inside():
    """The connection is closed halfway through the body."""

    async def reply(request, send):
        whole = http(200, reply_body(request))
        await send(whole[: len(whole) - len(reply_body(request)) // 2])
        raise ConnectionAbortedError

    return reply


def drip(every=0.02):
    """A valid reply, one byte at a time."""

    async def reply(request, send):
        for byte in http(200, reply_body(request)):
            await send(bytes([byte]))
            await asyncio.sleep(every)

    return reply


def silent():
    """Never a byte; the connection stays open."""

    async def reply(_, send):
        await asyncio.Event().wait()

    return reply


def malformed():
    """Status 200 and half of a JSON object."""
    return raw(200, b'{"id": "reply", "choices": [{"mess')


def html_page():
    """A page for browsers, as a login or a wrong path gives."""
    page = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>Please sign in</body></html>"
    return raw(200, page, kind="text/html; charset=utf-8")


def redirected(url=None):
    """A redirect to ``url``, by default to the path of the request, which never ends."""

    async def reply(request, send):
        await raw(307, b"", [f"Location: {url or request.path}"])(request, send)

    return reply


def endless():
    """Status 200 and a body that never ends."""

    async def reply(_, send):
        await send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            await send(b"10000\r\n%s\r\n" % (b" " * 2**16))

    return reply


def packed(size):
    """A small body that unpacks to ``size`` bytes."""
    return raw(200, gzip.compress(b" " * size), ["Content-Encoding: gzip"])


def http(status, body, headers=(), kind="application/json"):
    """Return a whole HTTP reply."""
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"Content-Type: {kind}"]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", *headers, "", ""]).encode() + body


@dataclass
class FaultServer:
    """The server, for the length of an ``async with``. Its address is ``url``, or ``root`` without /v1.

    ``requests`` are all requests in order. ``most_in_flight`` is the maximum number answered at once. Paths other than
    /v1/chat/completions and /v1/completions are answered with 404, or with their whole reply in ``other_paths``.
    """

    script: Any = ()
    requests: list[Request] = field(default_factory=list)
    most_in_flight: int = 0
    other_paths: dict[str, bytes] = field(default_factory=dict)
    _in_flight: int = 0
    _connections: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self):
        return f"{self.root}/v1"

    @property
    def root(self):
        return f"http://127.0.0.1:{self._port}"

    @property
    def left(self):
        """The requests whose client disconnected before the whole reply was sent."""
        return [request for request in self.requests if request.left]

    async def __aenter__(self):
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._protocol, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    def _protocol(self):
        reader = _Reader()

        def connected(_, writer):
            connection = asyncio.create_task(self._serve(reader, writer))
            self._connections.add(connection)
            connection.add_done_callback(self._connections.discard)

        return asyncio.StreamReaderProtocol(reader, connected)

    async def _serve(self, reader, writer):
        try:
            while (request := await self._read(reader)) is not None:
                await self._answer(request, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # many scripts close the connection on purpose
        finally:
            writer.close()

    async def _read(self, reader):
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")[:-2]
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"{}")
        request = Request(len(self.requests), time.time(), first.split()[1], headers, body)
        self.requests.append(request)
        return request

    async def _answer(self, request, reader, writer):
        async def send(data):
            writer.write(data)
            await writer.drain()

        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        answer = asyncio.ensure_future(self._behaviour(request)(request, send))
        gone = asyncio.create_task(reader.gone.wait())
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            request.left = not answer.done()
            if request.left:
                raise ConnectionResetError
            answer.result()
            request.answered = True
        finally:
            self._in_flight -= 1
            for task in (answer, gone):
                task.cancel()
            await asyncio.gather(answer, gone, return_exceptions=True)

    def _behaviour(self, request):
        if request.path in self.other_paths:
            return sent(self.other_paths[request.path])
        if request.path.partition("?")[0] not in ("/v1/chat/completions", "/v1/completions"):
            return refused(404, "there is nothing here")
        if callable(self.script):
            return self.script if iscoroutinefunction(self.script) else self.script(request)
        return self.script[request.number] if request.number < len(self.script) else ok()


class _Reader(asyncio.StreamReader):
    """A reader that notices a disconnect even if nobody is reading."""

    def __init__(self):
        super().__init__()
        self.gone = asyncio.Event()

    def feed_eof(self):
        self.gone.set()
        super().feed_eof()

    def set_exception(self, exc):
        self.gone.set()
        super().set_exception(exc)
