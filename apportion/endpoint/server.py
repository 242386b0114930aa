"""Send one request to an OpenAI-compatible server, until it is answered or given up as ``retries`` says.

A refusal of the content (400, 413, 422) is not sent again here. An error that no retry can fix ends the run: a wrong
key or URL, and a server that ``health`` finds dead, be it one that sends pages for browsers or redirects in a circle.

Secrets never appear in an error: only the text of an error is passed on, with each secret replaced.
"""

import asyncio
import logging
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import openai

from apportion.checks import encodable
from apportion.endpoint.client import PLAIN_PROMPT
from apportion.endpoint.completion import BadReply, Completion, EndpointError, Failure, Refusal, Usage
from apportion.endpoint.health import Health, Outcome
from apportion.endpoint.http import HTTP, BoundedHttp, RedirectLoop, ReplyTooLong, plain_url
from apportion.endpoint.reply import error_text, read_reply
from apportion.endpoint.retries import BUSY_SECONDS, Patience, asked_wait
from apportion.messages import Messages, chat_messages

SILENT_SECONDS = 50.0
"""Without a sign of life from the server for so long, a warning names it."""

SHOWN = 300
"""Maximum number of characters of a server's error in ours."""

logger = logging.getLogger("apportion.endpoint")

_PAGE = re.compile(rb"\s*(?:<!doctype html|<html)", re.IGNORECASE)
_TITLE = re.compile(rb"<title[^>]*>([^<]{1,200})", re.IGNORECASE)


@dataclass(frozen=True)
class _Unanswered:
    """An attempt without completions: the error, what it says about the server, and the wait that was asked for.

    ``retried`` is False if the same request would fail again. ``waits`` says that the server is busy, and
    ``astray`` that no API sent the answer.
    """

    problem: EndpointError | Failure
    outcome: Outcome = "failed"
    wait: float | None = None
    retried: bool = True
    waits: bool = False
    astray: bool = False


@dataclass(eq=False)
class Server:
    """Sends requests to one server. ``body`` holds their fields, except for prompt, n and seed.

    ``base_url`` has no query; that is ``query``. ``secrets`` are texts that no error may contain.
    """

    base_url: str
    key: str | None = field(repr=False)
    usage: Usage
    chat: bool
    body: Mapping[str, Any] = field(repr=False)
    connections: int
    timeout_seconds: float
    max_retries: int
    system: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    query: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        self._http = BoundedHttp(self.usage, self.timeout_seconds, self.connections, list(self.headers))
        self._openai = openai.AsyncOpenAI(
            base_url=self.base_url,
            api_key=self.key or "none",
            max_retries=0,
            timeout=self._http.timeout,
            http_client=self._http,
            default_headers=dict(self.headers),
            default_query=dict(self.query),
        )
        self._random = Random()
        self._health = Health()
        self._checking = False
        self._dead = ""
        self._silent_since = time.monotonic()
        self._said_busy = False

    async def aclose(self) -> None:
        """Close all connections."""
        await self._openai.close()

    async def ask(self, prompt: str | Messages, n: int, seed: int | None) -> list[Completion]:
        """Return the completions that the server gives for ``n``, at least one.

        Raises EndpointError or Failure; a Refusal if the server refuses the content of the request.
        """
        patience, sent = Patience(self.max_retries, self._random), 0
        while True:
            if self._dead:
                raise EndpointError(self._dead)
            found = await self._attempt(prompt, n, seed, sent)
            if not isinstance(found, _Unanswered):
                return found
            if isinstance(found.problem, EndpointError):
                raise found.problem
            await self._check_health(found, seed)
            sent += 1
            pause = patience.pause(found.waits, found.wait) if found.retried else None
            if pause is None or (n > 1 and patience.retries > 1):  # one long sample may fail all n
                found.problem.of_sample = not found.waits
                raise found.problem
            if found.waits and patience.busy_seconds >= SILENT_SECONDS:
                self._say_busy(found.problem)
            await asyncio.sleep(pause)

    async def _check_health(self, last: _Unanswered, seed: int | None) -> None:
        """Send a plain prompt if the server is suspected to be dead or another one. Raise EndpointError if it fails."""
        astray = last.astray and not self._health.answered
        if self._checking or not (astray or self._health.is_suspect):
            return
        failures, seconds = self._health.failures, self._health.failing_seconds
        self._checking = True
        try:
            found = await self._attempt(PLAIN_PROMPT, 1, seed, 0)
        finally:
            self._checking = False
        if isinstance(found, _Unanswered) and (found.astray if astray else found.outcome != "busy"):
            since = "since its last answer" if self._health.answered else "and never an answer"
            silent = (
                f"{self.base_url} must answer, got {failures} failures within {seconds:.0f} s {since} "
                f"({last.problem}), and for a plain prompt too ({found.problem}); check the server and base_url, "
                "then run again"
            )
            self._dead = str(last.problem) if astray else silent
            raise EndpointError(self._dead)

    async def _attempt(self, prompt: str | Messages, n: int, seed: int | None, retry: int) -> Any:
        """Return the completions, or an ``_Unanswered``, of one request."""
        token = self._health.start()
        outcome: Outcome = "unknown"
        silence = asyncio.get_running_loop().call_later(SILENT_SECONDS, self._say_silent)
        try:
            raw = await self._send(prompt, n, seed, retry)
            found = self._read(raw.http_response)
            outcome = found.outcome if isinstance(found, _Unanswered) else "answered"
            self._said_busy = self._said_busy and outcome != "answered"
            return found
        except openai.APIError as error:
            failed = self._unanswered(error)
            outcome = failed.outcome
            return failed
        finally:
            silence.cancel()
            self._silent_since = time.monotonic()
            self._health.end(token, outcome)

    def _say_busy(self, problem: Failure) -> None:
        """Say that requests wait, once until one is answered."""
        if not self._said_busy:
            self._said_busy = True
            logger.warning(
                "%s is busy (%s): requests wait until it answers, at most %g s each, and cost no sample; if it lasts, "
                "lower concurrency",
                self.base_url,
                problem,
                BUSY_SECONDS,
            )

    def _say_silent(self) -> None:
        """Say that nothing has come from the server for a minute, once until something comes."""
        silent = time.monotonic() - self._silent_since
        if silent >= SILENT_SECONDS:
            logger.warning(
                "%s has sent nothing for %.0f s: it may hang, or write long completions. A request is given up after "
                "%g s (timeout_seconds)",
                self.base_url,
                silent,
                self.timeout_seconds,
            )
            self._silent_since = math.inf

    async def _send(self, prompt: str | Messages, n: int, seed: int | None, retry: int) -> Any:
        given: dict[str, Any] = {"n": None if n == 1 else n, "seed": seed, **self.body}
        body = {name: value for name, value in given.items() if value is not None}
        body["extra_headers"] = {"x-stainless-retry-count": str(retry)}
        if self.chat:
            try:
                messages: Any = chat_messages(prompt, self.system)
            except ValueError as error:
                raise EndpointError(str(error)) from None
            return await self._openai.chat.completions.with_raw_response.create(messages=messages, **body)
        if not isinstance(prompt, str):
            raise EndpointError(
                'chat messages must go to api="chat", got api="completions"; write the prompt as a text'
            )
        return await self._openai.completions.with_raw_response.create(prompt=encodable(prompt), **body)

    def _read(self, response: Any) -> list[Completion] | _Unanswered:
        """Return the completions in a reply with status 200."""
        body = response.content
        try:
            found = read_reply(body)
        except BadReply as error:
            if _PAGE.match(body) or response.headers.get("content-type", "").startswith("text/html"):
                title = _TITLE.search(body)
                named = f' "{self._shown(title[1].decode(errors="replace"))}"' if title else ""
                return self._misdirected(f"sent a page for browsers{named} and not a reply{_redirected(response)}")
            return _Unanswered(Failure(self._shown(f"the server sent {error}")))
        self.usage.add(found)
        return found

    def _unanswered(self, error: openai.APIError) -> _Unanswered:
        """Return what an error of the openai client says about the request and the server."""
        if isinstance(error, openai.APIStatusError):
            return self._refused(error)
        cause = error.__cause__
        said = self._shown(str(cause) or type(cause).__name__)
        if isinstance(cause, RedirectLoop):
            return self._misdirected(f"was {said}, at last to {plain_url(cause.request.url)}")
        if isinstance(cause, ReplyTooLong):
            too_long = (
                f"the server sent a reply of {said}, which was cut off; lower max_tokens or the samples of a wave"
            )
            return _Unanswered(Failure(too_long), retried=False)
        if not self._http.reached and isinstance(cause, (HTTP.ConnectError, HTTP.ConnectTimeout)):
            url = self.base_url
            return _Unanswered(
                EndpointError(f"{url} cannot be reached ({said}); start the server, or correct base_url")
            )
        if isinstance(error, openai.APITimeoutError):
            late = f"the server sent no whole reply within {self.timeout_seconds:g} s"
            return _Unanswered(Failure(late), "late")
        return _Unanswered(Failure(f"the connection broke ({said})"))

    def _misdirected(self, what: str) -> _Unanswered:
        """Return the error of an answer that does not come from an API. It ends the run if a plain prompt gets one."""
        text = f"{self.base_url} {what}; check base_url, which often ends in /v1, and any proxy or login before it"
        return _Unanswered(Failure(text), astray=True)

    def _refused(self, error: openai.APIStatusError) -> _Unanswered:
        """Return what a status other than 200 says about the request and the server."""
        status, headers = error.status_code, error.response.headers
        said, moved = self._shown(error_text(error.body) or "no reason given"), _redirected(error.response)
        if status in (400, 413, 422):
            refusal = Refusal(f"the server refused the request with {status}: {said}")
            return _Unanswered(refusal, "unknown", retried=False)
        if status in (408, 409, 429) or status >= 500:
            busy, wait = asked_wait(status, headers, said)
            retried = headers.get("x-should-retry") != "false"
            problem = Failure(f"the server answered {status}{moved}: {said}")
            return _Unanswered(problem, "busy" if busy or wait is not None else "failed", wait, retried, waits=busy)
        remedy = "check base_url and the settings"
        if status in (401, 403):
            remedy = "check the key" if self.key else "set the key in the environment variable that api_key_env names"
        elif status in (404, 405):
            url = self.base_url.rstrip("/")
            remedy = "check base_url and model" if url.endswith("/v1") else f"try base_url {url}/v1, or check the model"
        return _Unanswered(EndpointError(f"{self.base_url} answered {status}{moved}: {said}; {remedy}"))

    def _shown(self, text: str) -> str:
        """Return ``text`` on one line, shortened and without secrets."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, "[secret]")
        if self.key:
            text = text.replace(self.key, "[key]")
        text = " ".join(encodable(text).split())
        return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _redirected(response: Any) -> str:
    """Return where a request was redirected to, for errors; nothing if it was not."""
    return f", after a redirect to {plain_url(response.request.url)}" if response.history else ""
