"""Ask the upstream server for one completion, as it is sent and not parsed into our own types.

Streams are joined into a whole reply. Closing an unfinished request closes its connection, which tells the server that
nobody waits for it. What is sent again is said in ``endpoint.retries``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from apportion import __version__
from apportion.endpoint import http
from apportion.endpoint.completion import BadReply
from apportion.endpoint.http import CONNECT_SECONDS, HTTP
from apportion.endpoint.reply import MOST_TOKENS, choice_text, error_text, is_broken
from apportion.endpoint.retries import Patience, asked_wait
from apportion.endpoint.stream import is_stream
from apportion.gateway.chunks import Assembly
from apportion.gateway.errors import INVALID, LIMIT, SERVER, UpstreamError
from apportion.gateway.settings import UpstreamSettings
from apportion.untrusted import check_depth, one_line

KEYS = {"authorization", "api-key", "x-api-key"}
FORWARDED = (*sorted(KEYS), "openai-organization", "openai-project")
"""Headers of a request that go upstream, and those of them that hold a key. Their values are never stored or logged."""

DRAIN_SECONDS = 0.5
"""How long a stream may stay open after its last event, before its connection is closed and not used again."""

AGENT = f"apportion/{__version__}".encode()

SAID = 500
"""Maximum number of characters of an upstream error in ours."""


TOKENS = ("prompt_tokens", "completion_tokens", "total_tokens")


@dataclass
class Bill:
    """What one vote has cost: upstream requests, and the tokens of those whose usage is known."""

    requests: int = 0
    counted: int = 0
    usage: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(TOKENS, 0))

    @property
    def uncounted(self) -> int:
        """Requests whose usage is unknown, because they were cancelled or failed or the server does not count."""
        return self.requests - self.counted

    def add(self, usage: Any) -> None:
        """Add the usage of one reply."""
        if isinstance(usage, dict) and usage:
            self.counted += 1
            parts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
            _add(self.usage, {"total_tokens": sum(each for each in parts if type(each) is int)} | usage)


class Upstream:
    """The upstream server, with a bound on requests in flight that all votes share."""

    def __init__(self, settings: UpstreamSettings, key: str | None = None) -> None:
        self._settings = settings
        self._url = settings.upstream.rstrip("/")
        self._key = key
        self._slots = asyncio.Semaphore(settings.connections)
        self._large = asyncio.Lock()
        self._counts_streams = True
        self._random = Random()
        self._http = HTTP.AsyncClient(
            timeout=HTTP.Timeout(None, connect=CONNECT_SECONDS),
            limits=HTTP.Limits(max_connections=None, max_keepalive_connections=settings.connections),
            follow_redirects=False,
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    def headers(self, given: Mapping[str, str]) -> dict[str, bytes]:
        """Return the headers for upstream of a request with the headers ``given``."""
        found = {
            name: value for name in FORWARDED if (value := given.get(name, "").strip()).lower() not in ("", "bearer")
        }
        if self._key and not found.keys() & KEYS:
            found["authorization"] = f"Bearer {self._key}"
        return {name: value.encode("latin-1") for name, value in found.items()}

    async def sample(self, body: Mapping[str, Any], headers: Mapping[str, bytes], bill: Bill) -> dict[str, Any]:
        """Return a reply with exactly one choice, which has a message. Raises UpstreamError."""
        patience = Patience(self._settings.max_retries, self._random)
        while True:
            try:
                return await self._attempt(body, headers, bill)
            except UpstreamError as error:
                pause = patience.pause(error.busy, error.retry_after) if error.again else None
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    async def get(self, path: str, headers: Mapping[str, bytes]) -> bytes:
        """Return the body of the reply to a GET. Raises UpstreamError."""
        seconds = min(self._settings.request_seconds, CONNECT_SECONDS)
        async with self._response("GET", path, headers, None, seconds) as response:
            body = await self._whole(response)
        if response.status_code != 200:
            raise self._refused(response.status_code, response.headers, body)
        return body

    async def _attempt(self, body: Mapping[str, Any], headers: Mapping[str, bytes], bill: Bill) -> dict[str, Any]:
        sent, counts = {**body}, self._settings.upstream_stream and self._counts_streams
        if self._settings.upstream_stream:
            sent |= {"stream": True} | ({"stream_options": {"include_usage": True}} if counts else {})
        async with self._slots:
            bill.requests += 1
            async with self._response("POST", "chat/completions", headers, sent, self._settings.request_seconds) as got:
                if got.status_code == 200:
                    reply = await self._read(got)
                else:
                    reply, refusal = {}, self._refused(got.status_code, got.headers, await self._whole(got))
        if not reply:
            if counts and refusal.status in (400, 422) and "stream_options" in str(refusal):
                self._counts_streams = False
                return await self._attempt(body, headers, bill)
            raise refusal
        bill.add(reply.get("usage"))
        return reply

    @asynccontextmanager
    async def _response(
        self, method: str, path: str, headers: Mapping[str, bytes], body: Any, seconds: float
    ) -> AsyncIterator[Any]:
        """Yield the response, whose body is still to be read. It must be read within ``seconds``."""
        content = None if body is None else json.dumps(body).encode()
        own = {
            "accept-encoding": b"identity",
            "user-agent": AGENT,
            **({} if body is None else {"content-type": b"application/json"}),
        }
        request = self._http.build_request(method, f"{self._url}/{path}", content=content, headers={**own, **headers})
        try:
            async with asyncio.timeout(seconds):
                response = await self._http.send(request, stream=True)
                try:
                    yield response
                finally:
                    await response.aclose()
        except TimeoutError:
            said = f"the upstream server sent no whole reply within {seconds:g} s"
            raise UpstreamError(504, said, again=True, kind=SERVER, code="upstream_timeout") from None
        except HTTP.RequestError as error:
            raise self._failed(f"cannot be reached, or broke the connection ({type(error).__name__})") from None

    async def _pieces(self, response: Any) -> AsyncGenerator[bytes, None]:
        """Yield the body in pieces. A large one waits for the others. Raise UpstreamError if it is too long."""
        size = 0
        async with AsyncExitStack() as alone:
            async for piece in response.aiter_bytes():
                if size <= http.LARGE_BYTES < size + len(piece):
                    await alone.enter_async_context(self._large)
                size += len(piece)
                if size > self._settings.max_reply_bytes:
                    raise self._failed(f"sent more than {self._settings.max_reply_bytes:,} bytes", again=False)
                yield piece

    async def _whole(self, response: Any) -> bytes:
        return b"".join([piece async for piece in self._pieces(response)])

    async def _read(self, response: Any) -> dict[str, Any]:
        """Return the reply: one object, or what the events of a stream make, whatever its declared type is."""
        pieces = self._pieces(response)
        async with aclosing(pieces):
            first = b""
            async for piece in pieces:
                first += piece
                if len(first.lstrip()) > len(b"retry:") or b"\n" in first.lstrip():
                    break
            if not is_stream(first):
                return self._checked(self._parsed(b"".join([first, *[piece async for piece in pieces]])))
            return await self._streamed(first, pieces)

    async def _streamed(self, first: bytes, pieces: AsyncIterator[bytes]) -> dict[str, Any]:
        made, done = Assembly(), False
        async with aclosing(_events(first, pieces)) as events:
            async for event in events:
                done = event == b"[DONE]"
                if done:
                    break
                self._add(made, event)
            if done:
                with suppress(TimeoutError):
                    async with asyncio.timeout(DRAIN_SECONDS):
                        await anext(events, None)  # the end of the body, after which the connection can be used again
        if not (done or made.finished):
            raise self._failed("ended a stream before the completion")
        return self._checked(made.reply())

    def _add(self, made: Assembly, event: bytes) -> None:
        chunk = self._parsed(event)
        if chunk.get("error"):
            raise self._failed(f"broke off a stream: {self._shown(error_text(chunk['error']))}")
        try:
            made.add(chunk)
        except ValueError as error:
            raise self._failed(f"sent {error}") from None

    def _parsed(self, body: bytes) -> dict[str, Any]:
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            raise self._failed("sent a reply that is not JSON; check --upstream") from None
        if not isinstance(found, dict):
            raise self._failed("sent a reply that is not an object; check --upstream")
        return found

    def _checked(self, reply: dict[str, Any]) -> dict[str, Any]:
        """Return ``reply`` if its first choice has a message, with this choice alone."""
        found = reply.get("choices")
        if not isinstance(found, list) or not found or not isinstance(found[0], dict):
            raise self._failed("sent a reply without choices")
        if not isinstance(found[0].get("message"), dict):
            raise self._failed("sent a choice without a message")
        if is_broken(found[0]):
            said = self._shown(error_text(found[0].get("error")) or "no reason")
            raise self._failed(f"broke off a completion: {said}")
        try:
            choice_text(found[0])
            check_depth(reply)
        except (BadReply, ValueError) as error:
            raise self._failed(f"sent a reply that cannot be used: {error}") from None
        return {**reply, "choices": found[:1]}

    def _refused(self, status: int, headers: Mapping[str, str], body: bytes) -> UpstreamError:
        """Return the error for a reply with another status than 200."""
        try:
            found = json.loads(body.replace(self._key.encode(), b"[key]") if self._key else body)
            check_depth(found)
        except (ValueError, RecursionError):
            found = None
        sent = found.get("error") if isinstance(found, dict) else None
        said = self._shown(error_text(sent or found) or "no reason given")
        if status >= 500 or status < 400:
            problem = self._failed(f"answered {status}: {said}", 503 if status == 503 else 502, again=status >= 500)
        else:
            problem = UpstreamError(
                status,
                f"the upstream server answered {status}: {said}",
                again=status in (408, 409, 429),
                sent=sent,
                kind=LIMIT if status == 429 else INVALID,
            )
        problem.busy, problem.retry_after = asked_wait(status, headers, said)
        return problem

    def _failed(self, problem: str, status: int = 502, again: bool = True) -> UpstreamError:
        return UpstreamError(status, f"the upstream server {problem}", again=again, kind=SERVER, code="upstream_failed")

    def _shown(self, text: str) -> str:
        """Return ``text`` on one line, shortened and without the gateway's key."""
        return one_line((text.replace(self._key, "[key]") if self._key else text)[:SAID])


async def _events(first: bytes, pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the data of each event. Every one of an OpenAI-compatible server takes one line."""
    *lines, rest = first.split(b"\n")
    while True:
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
        try:
            *lines, rest = (rest + await anext(pieces)).split(b"\n")
        except StopAsyncIteration:
            break
    if rest.startswith(b"data:"):
        yield rest[5:].strip()


def _add(total: dict[str, Any], usage: Mapping[str, Any]) -> None:
    """Add the integers of ``usage`` to ``total``, also those of the objects within it. Impossible ones are left out."""
    for name, value in usage.items():
        if isinstance(value, dict):
            within = total.setdefault(name, {})
            if isinstance(within, dict):
                _add(within, value)
        elif type(value) is int and 0 <= value <= MOST_TOKENS and isinstance(total.get(name, 0), int):
            total[name] = total.get(name, 0) + value
