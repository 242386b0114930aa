"""The HTTP client of an endpoint: every request is bounded in time, in bytes and in redirects.

httpx has a deadline for each read, which a slow trickle of bytes never exceeds, so the deadline here covers a request
with its redirects and its whole body. A body that is too long is cut off. The logs of the HTTP library name URLs
without their queries, which may hold a key.
"""

import asyncio
import json
import logging
import re
from collections.abc import Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import openai

from apportion import __version__
from apportion.endpoint.completion import BadReply, Fault
from apportion.endpoint.reply import error_text
from apportion.endpoint.retries import error_fault
from apportion.endpoint.stream import has_ended, read_body
from apportion.untrusted import check_depth, one_line

HTTP: Any = import_module(openai.DefaultAsyncHttpxClient.__mro__[1].__module__)  # httpx; from openai 3 on, httpx2

CONNECT_SECONDS = 10.0
MAX_REPLY_BYTES = 2**26
"""Bytes of the longest reply, unpacked: 64 MiB. Half a million tokens with 20 log-probabilities each are shorter."""

LINGER_SECONDS = 2.0
"""How long a stream may stay open after its choices have ended, in which its usage and its last event may come."""

MAX_REDIRECTS = 3
SHOWN = 500
"""Maximum number of characters of a server's error in ours."""

_PAGE = re.compile(rb"\s*+(?:<!doctype html|<html)", re.IGNORECASE)
_TITLE = re.compile(rb"<title[^>]*>([^<]{1,200})", re.IGNORECASE)


def plain_url(url: Any) -> Any:
    """Return a URL without its query, fragment and user, which may hold secrets."""
    return url.copy_with(query=None, fragment=None, userinfo=b"")


class _PlainUrls(logging.Filter):
    """Keeps queries of URLs out of the logs of the HTTP library, which logs the URL of every request."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(plain_url(each) if isinstance(each, HTTP.URL) else each for each in record.args)
        return True


logging.getLogger(HTTP.__name__.partition(".")[0]).addFilter(_PlainUrls())


@dataclass(eq=False, repr=False)
class Http:
    """Sends requests to the server at ``url``. ``reached`` says whether any reply has arrived.

    Args:
        url: the address before the paths, without a query.
        idle: the most connections that are kept for further requests.
        headers: headers of every request.
        hidden: texts that no error may contain, and what stands in their place.
        query: the query of every URL.
        most_bytes: the longest reply; None is ``MAX_REPLY_BYTES``.
        own_headers: names of the headers that only the first host may get, because they may hold secrets; None lets no
            redirect be followed.
    """

    url: str
    idle: int
    headers: Mapping[str, str]
    hidden: Mapping[str, str]
    query: Mapping[str, str] | None = None
    most_bytes: int | None = None
    own_headers: Collection[str] | None = None
    reached: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        own = {"accept": "application/json", "user-agent": f"apportion/{__version__}"}
        self._http = HTTP.AsyncClient(
            headers=own | {name.lower(): value for name, value in self.headers.items()},
            params=self.query or None,
            timeout=HTTP.Timeout(None, connect=CONNECT_SECONDS),
            limits=HTTP.Limits(max_connections=None, max_keepalive_connections=self.idle),
            follow_redirects=self.own_headers is not None,
            max_redirects=MAX_REDIRECTS,
            event_hooks={"request": [self._keep_own_headers]},
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def send(
        self, method: str, path: str, seconds: float, body: Any = None, headers: Mapping[str, bytes] | None = None
    ) -> Any:
        """Return the reply to one request, with the chunks of a stream put together. Raises Fault.

        A request that is cancelled closes its connection, which tells the server that nobody waits for it.
        """
        content = None if body is None else json.dumps(body).encode()
        given = {} if body is None else {"content-type": b"application/json"}
        request = self._http.build_request(
            method, f"{self.url.rstrip('/')}/{path}", content=content, headers={**given, **(headers or {})}
        )
        try:
            async with asyncio.timeout(seconds):
                response = await self._http.send(request, stream=True)
                self.reached = True
                try:
                    return await self._read(response)
                finally:
                    await response.aclose()
        except TimeoutError:
            raise Fault(f"sent no whole reply within {seconds:g} s", "late") from None
        except HTTP.TooManyRedirects as error:
            last = plain_url(error.request.url)
            raise Fault(f"was redirected {MAX_REDIRECTS + 1} times, at last to {last}", "astray") from None
        except HTTP.RequestError as error:
            said = str(error) or type(error).__name__
            if isinstance(error, (HTTP.ConnectError, HTTP.ConnectTimeout)):
                raise Fault(f"cannot be reached ({said})", "absent") from None
            raise Fault(f"broke the connection ({said})") from None

    def shown(self, text: object) -> str:
        """Return ``text`` on one line, shortened and without secrets."""
        said = one_line(self._without_secrets(str(text)))
        return said if len(said) <= SHOWN else f"{said[:SHOWN]}..."

    def _without_secrets(self, text: str) -> str:
        for secret in sorted(self.hidden, key=len, reverse=True):
            text = text.replace(secret, self.hidden[secret])
        return text

    async def _keep_own_headers(self, request: Any) -> None:
        """Remove our own headers from a request that was redirected to another host, or from https to http."""
        first = HTTP.URL(self.url)
        if request.url.host != first.host or (first.scheme, request.url.scheme) == ("https", "http"):
            for name in self.own_headers or ():
                request.headers.pop(name, None)

    async def _read(self, response: Any) -> Any:
        """Return the reply in a response, whatever the declared type is."""
        raw, most = bytearray(), self.most_bytes or MAX_REPLY_BYTES
        async with aclosing(response.aiter_bytes()) as pieces:
            try:
                async with asyncio.timeout(None) as end:
                    async for piece in pieces:
                        raw += piece
                        if len(raw) > most:
                            said = f"sent a reply of more than {most:,} bytes, which was cut off"
                            raise Fault(said, "long", again=False)
                        if end.when() is None and has_ended(raw):
                            end.reschedule(asyncio.get_running_loop().time() + LINGER_SECONDS)
            except (TimeoutError, HTTP.RequestError):
                if end.when() is None:
                    raise
        moved = f", after a redirect to {plain_url(response.url)}" if response.history else ""
        if not response.is_success:
            raise self._refused(response.status_code, response.headers, bytes(raw), moved)
        try:
            return read_body(raw)
        except BadReply:
            if _PAGE.match(raw) or response.headers.get("content-type", "").startswith("text/html"):
                title = _TITLE.search(raw)
                named = f' "{title[1].decode(errors="replace")}"' if title else ""
                raise Fault(f"sent a page for browsers{named} and not a reply{moved}", "astray") from None
            raise

    def _refused(self, status: int, headers: Mapping[str, str], body: bytes, moved: str) -> Fault:
        """Return the fault of a reply whose status is not 200."""
        text = self._without_secrets(body.decode(errors="replace"))
        try:
            found = json.loads(text)
            check_depth(found)
        except (ValueError, RecursionError):
            found = text
        sent = found.get("error") if isinstance(found, dict) else None
        said = self.shown(error_text(sent or found) or "no reason given")
        return error_fault(status, f"answered {status}{moved}: {said}", text, headers, sent)
