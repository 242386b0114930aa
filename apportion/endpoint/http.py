"""The HTTP client of an endpoint: every request is bounded in time, in bytes and in redirects.

httpx has a deadline for each read, which a slow trickle of bytes never exceeds, so the deadline here covers a request
with its redirects and its whole body. A body that is longer than ``MAX_REPLY_BYTES`` is cut off, and bodies longer than
``LARGE_BYTES`` are read one at a time. The logs of the HTTP library name URLs without their queries, which may hold a
key.
"""

import asyncio
import logging
from collections.abc import Collection
from contextlib import AsyncExitStack
from importlib import import_module
from typing import Any

import openai

from apportion.endpoint.completion import Usage

HTTP: Any = import_module(openai.DefaultAsyncHttpxClient.__mro__[1].__module__)  # httpx; from openai 3 on, httpx2

CONNECT_SECONDS = 10.0
MAX_REPLY_BYTES = 2**26
"""Bytes of the longest reply, unpacked: 64 MiB. Half a million tokens with 20 log-probabilities each are shorter."""

LARGE_BYTES = 2**20
"""Bytes of a reply beyond which it is read alone, so that all replies together are bounded, too."""

MAX_REDIRECTS = 3
_OF_A_PACKED_BODY = ("content-encoding", "content-length", "transfer-encoding")


def plain_url(url: Any) -> Any:
    """Return a URL without its query, fragment and user, which may hold secrets."""
    return url.copy_with(query=None, fragment=None, userinfo=b"")


class _PlainUrls(logging.Filter):
    """Keeps queries of URLs out of the logs of the HTTP library, which logs the URL of every request."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(plain_url(each) if isinstance(each, HTTP.URL) else each for each in record.args)
        return True


for _name in (HTTP.__name__.partition(".")[0], "openai._base_client"):
    logging.getLogger(_name).addFilter(_PlainUrls())


class ReplyTooLong(HTTP.ReadError):  # type: ignore[misc]
    """The error of a reply of more than ``MAX_REPLY_BYTES``."""


class RedirectLoop(HTTP.RequestError):  # type: ignore[misc]
    """The error of a request that was redirected more than ``MAX_REDIRECTS`` times."""


class BoundedHttp(openai.DefaultAsyncHttpxClient):
    """An HTTP client with one deadline for the whole of a request, which counts requests in ``usage``.

    ``own_headers`` are the names of the headers that only the first host may get, because they may hold secrets.
    ``reached`` says whether any reply has arrived.
    """

    def __init__(self, usage: Usage, seconds: float, connections: int, own_headers: Collection[str] = ()):
        super().__init__(
            timeout=HTTP.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS)),
            limits=HTTP.Limits(max_connections=connections, max_keepalive_connections=connections),
        )
        self.usage = usage
        self.seconds = seconds
        self.own_headers = own_headers
        self.reached = False
        self._large = asyncio.Lock()

    async def send(self, request: Any, **options: Any) -> Any:
        """Send a request, follow its redirects and read the whole reply. Raises errors of httpx."""
        self.usage.requests += 1
        self.usage.retries += request.headers.get("x-stainless-retry-count", "0") != "0"
        try:
            async with asyncio.timeout(self.seconds):
                response = await self._follow(request, **options | {"stream": True, "follow_redirects": False})
        except TimeoutError:
            raise HTTP.ReadTimeout("the deadline has passed", request=request) from None
        except asyncio.CancelledError:
            self.usage.cancelled += 1
            raise
        return response

    async def _follow(self, request: Any, **options: Any) -> Any:
        """Return the reply at the end of the redirects, with the replies before it as its history."""
        history: list[Any] = []
        while True:
            response = await super().send(request, **options)
            self.reached = True
            try:
                if response.next_request is None:
                    return await _read(response, history, self._large)
            finally:
                await response.aclose()
            history.append(response)
            request = self._without_own_headers(response.next_request, request.url)
            if len(history) > MAX_REDIRECTS:
                raise RedirectLoop(f"redirected {len(history)} times", request=request)

    def _without_own_headers(self, request: Any, before: Any) -> Any:
        """Return the request without the own headers if it goes to another host, or from HTTPS to HTTP."""
        if request.url.host != before.host or (before.scheme, request.url.scheme) == ("https", "http"):
            for name in self.own_headers:
                request.headers.pop(name, None)
        return request


async def _read(response: Any, history: list[Any], large: asyncio.Lock) -> Any:
    """Return the response with its whole body, unpacked. A large one waits for the others. Raises ReplyTooLong."""
    body = bytearray()
    async with AsyncExitStack() as alone:
        async for chunk in response.aiter_bytes():
            if len(body) <= LARGE_BYTES < len(body) + len(chunk):
                await alone.enter_async_context(large)
            body += chunk
            if len(body) > MAX_REPLY_BYTES:
                raise ReplyTooLong(f"more than {MAX_REPLY_BYTES:,} bytes", request=response.request)
    headers = [pair for pair in response.headers.multi_items() if pair[0].lower() not in _OF_A_PACKED_BODY]
    return HTTP.Response(
        response.status_code, headers=headers, content=bytes(body), request=response.request, history=history
    )
