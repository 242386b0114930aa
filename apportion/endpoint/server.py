"""Send one request to an OpenAI-compatible server, until it is answered or its retries are used up.

The openai client (3.x) retries 408, 409, 429, 5xx, broken connections and timeouts. It waits 0.5 s, doubling to at most
8 s, less up to a quarter at random, or as long as Retry-After or Retry-After-Ms asks for. If that is more than two
minutes, the request fails. The client accepts any body with status 200, so a request whose reply holds no completions
is sent again here. Both kinds of retries have one limit together.

The deadline covers one request with its whole body. httpx has a deadline for each read, which a slow trickle of bytes
never exceeds. A late request is cancelled, and the openai client sends it again.

The key never appears in an error: only the text of an error is passed on, with the key replaced.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from random import Random
from typing import Any

import openai

from apportion.checks import encodable
from apportion.endpoint.client import Messages
from apportion.endpoint.completion import (
    BadReply,
    Completion,
    EndpointError,
    Failure,
    Refusal,
    Usage,
)
from apportion.endpoint.reply import error_text, read_reply

HTTP: Any = import_module(openai.DefaultAsyncHttpxClient.__mro__[1].__module__)  # httpx; from openai 3 on, httpx2

CONNECT_SECONDS = 10.0
SHOWN = 300
"""Maximum number of characters of a server's error in ours."""


@dataclass(eq=False)
class Server:
    """Sends requests to one server. ``body`` holds their fields, except for prompt, n and seed."""

    base_url: str
    key: str | None = field(repr=False)
    usage: Usage
    chat: bool
    body: Mapping[str, Any]
    connections: int
    timeout_seconds: float
    max_retries: int

    def __post_init__(self) -> None:
        self._http = _Http(self.usage, self.timeout_seconds, self.connections)
        self._openai = openai.AsyncOpenAI(
            base_url=self.base_url,
            api_key=self.key or "none",
            max_retries=self.max_retries,
            timeout=self._http.timeout,
            http_client=self._http,
        )
        self._random = Random()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._openai.close()

    async def ask(self, prompt: str | Messages, n: int, seed: int | None) -> list[Completion]:
        """Return the completions that the server gives for ``n``, at least one.

        Raises EndpointError or Failure; a Refusal if the server refuses the content of the request.
        """
        retries = 0
        while True:
            try:
                raw = await self._send(prompt, n, seed, self.max_retries - retries)
                found = read_reply(raw.http_response.content)
            except openai.APIError as error:
                problem = self._problem(error)
                break  # raised outside, because in here the server's error would become its context
            except BadReply as error:
                retries += raw.retries_taken
                problem = Failure(self._shown(f"the server sent {error}"))
                if retries == self.max_retries:
                    break
                await asyncio.sleep(min(0.5 * 2**retries, 8.0) * self._random.uniform(0.75, 1.0))
                retries += 1
                self.usage.retries += 1
            else:
                self.usage.add(found)
                return found
        raise problem

    async def _send(self, prompt: str | Messages, n: int, seed: int | None, max_retries: int) -> Any:
        given: dict[str, Any] = {"n": None if n == 1 else n, "seed": seed, **self.body}
        body = {name: value for name, value in given.items() if value is not None}
        client = self._openai
        if max_retries < self.max_retries:
            client = client.with_options(max_retries=max_retries)
        if self.chat:
            given_messages = ({"role": "user", "content": prompt},) if isinstance(prompt, str) else prompt
            messages: Any = [{key: encodable(text) for key, text in message.items()} for message in given_messages]
            return await client.chat.completions.with_raw_response.create(messages=messages, **body)
        if not isinstance(prompt, str):
            raise EndpointError(
                'chat messages must go to api="chat", got api="completions"; write the prompt as a text'
            )
        return await client.completions.with_raw_response.create(prompt=encodable(prompt), **body)

    def _problem(self, error: openai.APIError) -> EndpointError | Failure:
        """Return our error for an error of the openai client."""
        if isinstance(error, openai.APIStatusError):
            return self._status_problem(error.status_code, self._shown(error_text(error.body) or "no reason given"))
        cause = error.__cause__
        said = self._shown(str(cause) or type(cause).__name__)
        if not self._http.reached and isinstance(cause, (HTTP.ConnectError, HTTP.ConnectTimeout)):
            return EndpointError(f"{self.base_url} cannot be reached ({said}); start the server, or correct base_url")
        if isinstance(error, openai.APITimeoutError):
            return Failure(f"the server sent no whole reply within {self.timeout_seconds:g} s")
        return Failure(f"the connection broke ({said})")

    def _status_problem(self, status: int, said: str) -> EndpointError | Failure:
        if status in (400, 413, 422):
            return Refusal(f"the server refused the request with {status}: {said}")
        if status in (408, 409, 429) or status >= 500:
            return Failure(f"the server answered {status}: {said}")
        remedy = "check base_url and the settings"
        if status in (401, 403):
            remedy = "check the key" if self.key else "set the key in the environment variable that api_key_env names"
        elif status in (404, 405):
            url = self.base_url.rstrip("/")
            remedy = "check base_url and model" if url.endswith("/v1") else f"try base_url {url}/v1, or check the model"
        return EndpointError(f"{self.base_url} answered {status}: {said}; {remedy}")

    def _shown(self, text: str) -> str:
        """Return ``text`` on one line, shortened and without the key."""
        if self.key:
            text = text.replace(self.key, "[key]")
        text = " ".join(encodable(text).split())
        return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


class _Http(openai.DefaultAsyncHttpxClient):
    """An HTTP client that gives each request one deadline for all of it, and counts requests."""

    def __init__(self, usage: Usage, seconds: float, connections: int):
        super().__init__(
            timeout=HTTP.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS)),
            limits=HTTP.Limits(max_connections=connections, max_keepalive_connections=connections),
        )
        self.usage = usage
        self.seconds = seconds
        self.reached = False

    async def send(self, request: Any, **options: Any) -> Any:
        self.usage.requests += 1
        self.usage.retries += request.headers.get("x-stainless-retry-count", "0") != "0"
        try:
            async with asyncio.timeout(self.seconds):
                response = await super().send(request, **options)
        except TimeoutError:
            raise HTTP.ReadTimeout("the deadline has passed", request=request) from None
        except asyncio.CancelledError:
            self.usage.cancelled += 1
            raise
        self.reached = True
        return response
