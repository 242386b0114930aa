"""Send one request to an OpenAI-compatible server, until it is answered or given up as ``retries`` says.

A refusal of the content (400, 413, 422) is not sent again here. An error that no retry can fix ends the run: a wrong
key or URL, and a server that ``health`` finds dead, be it one that sends pages for browsers or redirects in a circle.

Secrets never appear in an error: only the text of an error is passed on, with each secret replaced.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from apportion.endpoint.client import PLAIN_PROMPT
from apportion.endpoint.completion import Completion, EndpointError, Failure, Fault, Refusal, Usage
from apportion.endpoint.health import Health, Outcome
from apportion.endpoint.http import Http
from apportion.endpoint.reply import read_reply
from apportion.endpoint.retries import BUSY_SECONDS, Patience, may_pass
from apportion.messages import Messages

SILENT_SECONDS = 50.0
"""Without an answer for so long, a warning names the server."""

REFUSALS = (400, 413, 422)
"""Statuses that refuse the content of a request."""

logger = logging.getLogger("apportion.endpoint")


@dataclass(eq=False, repr=False)
class Server:
    """Sends requests over ``http``, each for at most ``seconds``, and counts them in ``usage``.

    ``request`` returns the path and the body for a prompt, n and seed, or raises ValueError. ``has_key`` says whether a
    key is sent.
    """

    http: Http
    request: Callable[[str | Messages, int, int | None], tuple[str, dict[str, Any]]]
    usage: Usage
    seconds: float
    max_retries: int
    has_key: bool
    _health: Health = field(default_factory=Health, init=False)
    _answered_at: float = field(default=-math.inf, init=False)
    _checking: bool = False
    _dead: str = ""

    async def ask(self, prompt: str | Messages, n: int, seed: int | None) -> list[Completion]:
        """Return the completions that the server gives for ``n``, at least one.

        Raises EndpointError or Failure; a Refusal if the server refuses the content of the request.
        """
        patience, started = Patience(self.max_retries), time.monotonic()
        while True:
            if self._dead:
                raise EndpointError(self._dead)
            found = await self._attempt(prompt, n, seed)
            if not isinstance(found, Fault):
                return found
            problem = self._problem(found)
            if isinstance(problem, EndpointError):
                raise problem
            await self._check_health(found, seed)
            pause = patience.pause(found)
            if pause is None or (n > 1 and patience.retries > 1):  # one long sample may fail all n
                problem.of_sample = not found.busy
                raise problem
            self._say_silent(started, str(problem))
            await asyncio.sleep(pause)
            self.usage.retries += 1

    async def _check_health(self, last: Fault, seed: int | None) -> None:
        """Send a plain prompt if the server seems to be dead or replaced by another.

        Raise EndpointError if that fails.
        """
        health = self._health
        astray = last.kind == "astray" and not health.answered
        if self._checking or not (astray or health.is_suspect):
            return
        failures, seconds = health.failures, health.failing_seconds
        self._checking = True
        try:
            found = await self._attempt(PLAIN_PROMPT, 1, seed)
        finally:
            self._checking = False
        if isinstance(found, Fault) and (found.kind == "astray" if astray else _outcome(found) != "busy"):
            since = "since its last answer" if health.answered else "and never an answer"
            silent = (
                f"{self.http.url} must answer, got {failures} failures within {seconds:.0f} s {since} "
                f"({self._problem(last)}), and for a plain prompt too ({self._problem(found)}); check the server and "
                "base_url, then run again"
            )
            self._dead = str(self._problem(last)) if astray else silent
            raise EndpointError(self._dead)

    async def _attempt(self, prompt: str | Messages, n: int, seed: int | None) -> list[Completion] | Fault:
        """Return the completions of one request, or its fault. Errors of our own carry none of the request."""
        try:
            path, body = self.request(prompt, n, seed)
        except ValueError as error:
            raise EndpointError(str(error)) from None
        token = self._health.start()
        outcome: Outcome = "unknown"
        silence = asyncio.get_running_loop().call_later(SILENT_SECONDS, self._say_silent, time.monotonic())
        self.usage.requests += 1
        try:
            found = read_reply(await self.http.send("POST", path, self.seconds, body))
            outcome, self._answered_at = "answered", time.monotonic()
            self.usage.add(found)
            return found
        except Fault as fault:
            outcome = _outcome(fault)
            return fault
        except asyncio.CancelledError:
            self.usage.cancelled += 1
            raise
        finally:
            silence.cancel()
            self._health.end(token, outcome)

    def _say_silent(self, since: float, last: str = "requests are in flight") -> None:
        """Warn once that no request was answered since this one was sent; warn again only after an answer."""
        silent = time.monotonic() - max(since, self._answered_at)
        if silent >= SILENT_SECONDS:
            logger.warning(
                "%s has answered nothing for %.0f s (%s): it may be busy, hang, or write long completions. A request "
                "is given up after %g s (timeout_seconds), and after %g s while the server is busy, which costs no "
                "sample; if it lasts, lower concurrency",
                self.http.url,
                silent,
                last,
                self.seconds,
                BUSY_SECONDS,
            )
            self._answered_at = math.inf

    def _problem(self, fault: Fault) -> EndpointError | Failure:
        """Return EndpointError for a fault that ends the run, or Failure for one that fails a single request."""
        said, status = self.http.shown(fault), fault.status
        here = f"{self.http.url} {said}"
        if fault.kind == "absent" and not self.http.reached:
            return EndpointError(f"{here}; start the server, or correct base_url")
        if fault.kind == "astray":
            return Failure(f"{here}; check base_url, which often ends in /v1, and any proxy or login before it")
        if fault.kind == "long":
            return Failure(f"the server {said}; lower max_tokens or the samples of a wave")
        if status in REFUSALS:
            return Refusal(f"the server {said}")
        if status is None or may_pass(status):
            return Failure(f"the server {said}")
        remedy = "check base_url and the settings"
        if status in (401, 403):
            remedy = (
                "check the key" if self.has_key else "set the key in the environment variable that api_key_env names"
            )
        elif status in (404, 405):
            url = self.http.url.rstrip("/")
            remedy = "check base_url and model" if url.endswith("/v1") else f"try base_url {url}/v1, or check the model"
        return EndpointError(f"{here}; {remedy}")


def _outcome(fault: Fault) -> Outcome:
    """Return what a fault says about the server."""
    if fault.status in REFUSALS:
        return "unknown"
    if fault.busy or fault.wait is not None:
        return "busy"
    return "late" if fault.kind == "late" else "failed"
