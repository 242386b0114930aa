"""The settings of an endpoint: vLLM, SGLang, llama.cpp, ``transformers serve``, or a hosted model."""

import json
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from apportion.checks import check_least, check_numbers, check_positive, encodable
from apportion.endpoint.client import Client
from apportion.endpoint.completion import EndpointError, Usage
from apportion.endpoint.secrets import hide_secrets, secret_texts
from apportion.messages import Messages, chat_messages
from apportion.untrusted import shown

LARGEST = 10**9
"""Largest tokens, requests and retries that a setting accepts; more is taken for a mistake."""

RESERVED = ("model", "messages", "prompt", "n", "seed", "stream")
"""Fields of a request that ``extra_body`` must not hold."""

OF_THE_CLIENT = ("content-length", "content-type", "host", "transfer-encoding")
"""Headers that ``headers`` must not hold."""


@dataclass(frozen=True, repr=False)
class Endpoint:
    """A server, a model and its sampling settings.

    Attributes:
        base_url: the URL as the server has it, with /v1 if that is part of it. Its query is sent with each request.
        model: the name under which the server offers the model.
        api: "chat" sends the prompt as one user message, "completions" as raw text.
        temperature: sampling temperature; None leaves it to the server.
        top_p: probability mass to sample from; None leaves it to the server.
        max_tokens: longest completion in tokens; None leaves it to the server.
        seed: the seed that each request's own is derived from; None sends no seed.
        concurrency: maximum number of requests in flight, with those that wait for a retry.
        timeout_seconds: deadline of one request with its whole body, without its retries.
        max_retries: maximum number of retries of one request.
        api_key_env: the environment variable with the key, which is read when the connection is made.
        extra_body: further fields of every request, such as {"top_k": 20}.
        system: a system prompt, which comes before the prompt; None sends none. It needs the api "chat".
        headers: further headers of every request. They are never shown and never written.

    Some hosted models demand ``max_completion_tokens``: set ``max_tokens=None,
    extra_body={"max_completion_tokens": 2048}``. Raises ValueError for invalid settings.

    Secrets belong into the variable ``api_key_env``, the ``headers``, the query of ``base_url``, or fields of
    ``extra_body`` with a name such as "api_key". They are not in the ``repr``, in errors, or in ``public_settings``.

    >>> Endpoint("localhost:8000/v1", "Qwen/Qwen2.5-0.5B-Instruct")
    Traceback (most recent call last):
    ValueError: base_url must start with http:// or https://, got 'localhost:8000/v1'; write http://localhost:8000/v1
    """

    base_url: str
    model: str
    api: Literal["chat", "completions"] = "chat"
    temperature: float | None = 0.6
    top_p: float | None = 0.95
    max_tokens: int | None = 2048
    seed: int | None = 0
    concurrency: int = 32
    timeout_seconds: float = 600.0
    max_retries: int = 5
    api_key_env: str = "OPENAI_API_KEY"
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    system: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_numbers(self)
        check_url("base_url", self.base_url)
        if not self.model:
            raise ValueError("model must be named, got none; give the name under which the server offers it")
        if self.api not in ("chat", "completions"):
            raise ValueError(f'api must be "chat" or "completions", got {self.api!r}; "chat" is usual')
        check_least(self, temperature=0, max_tokens=1, concurrency=1, max_retries=0)
        check_positive(self, "timeout_seconds")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}; 0.95 is usual")
        for name in ("max_tokens", "concurrency", "max_retries"):
            if (getattr(self, name) or 0) > LARGEST:
                raise ValueError(f"{name} must be at most {LARGEST}, got {shown(getattr(self, name))}; lower it")
        for name in RESERVED:
            if name in self.extra_body:
                raise ValueError(f"extra_body must not hold {name}, which the client sets; leave it out")
        try:
            json.dumps(dict(self.extra_body), allow_nan=False)
        except (TypeError, ValueError) as error:
            given = shown(hide_secrets(self.extra_body))
            raise ValueError(f"extra_body must be JSON, got {given} ({error}); change that value") from error
        if self.system is not None and self.api == "completions":
            raise ValueError(
                'system must go with api="chat", got api="completions"; write the system prompt into the template'
            )
        for name, value in self.headers.items():
            _check_header(name, value)

    def __repr__(self) -> str:
        """Return the settings without secrets."""
        settings = self.public_settings()
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in settings.items())})"

    def public_settings(self) -> dict[str, Any]:
        """Return the settings that may be written to files, as plain values by name.

        The query of ``base_url`` and the ``headers`` are left out. Fields of ``extra_body`` whose names look like
        secrets have the word secret in place of their texts.

        >>> Endpoint("http://host/v1?api-key=1", "tiny", extra_body={"top_k": 20}).public_settings()["base_url"]
        'http://host/v1'
        """
        settings = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "headers"}
        return settings | {"base_url": self._split_url[0], "extra_body": hide_secrets(self.extra_body)}

    def check_prompt(self, prompt: str | Messages) -> None:
        """Raise ValueError if ``prompt`` cannot be sent: messages to the api "completions", or two system prompts."""
        self.request(prompt)

    def request(self, prompt: str | Messages, n: int = 1, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Return the path and the body of a request. Raise ValueError if ``prompt`` cannot be sent."""
        own = {"model": self.model, "temperature": self.temperature, "top_p": self.top_p, "max_tokens": self.max_tokens}
        own |= {"n": None if n == 1 else n, "seed": seed}
        body = {name: value for name, value in own.items() if value is not None} | dict(self.extra_body)
        if self.api == "chat":
            return "chat/completions", body | {"messages": chat_messages(prompt, self.system)}
        if not isinstance(prompt, str):
            raise ValueError('chat messages must go to api="chat", got api="completions"; write the prompt as a text')
        return "completions", body | {"prompt": encodable(prompt)}

    @property
    def _split_url(self) -> tuple[str, dict[str, str]]:
        """The URL without query and fragment, and the fields of the query."""
        parts = urlsplit(self.base_url)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        return urlunsplit((parts.scheme, parts.netloc, parts.path, "", "")), query

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Client]:
        """Connect a client for the length of an ``async with``. Nothing is sent before the first sample is requested.

            async with Endpoint("http://localhost:8000/v1", "Qwen/Qwen2.5-0.5B-Instruct").connect() as client:
                async for completion in client.sample("What is 6 x 7?", 8):
                    print(completion.text)

        Raises EndpointError if the openai package is missing or the key cannot be sent.
        """
        try:
            from apportion.endpoint.http import Http  # noqa: PLC0415 - openai is an optional extra
            from apportion.endpoint.server import Server  # noqa: PLC0415 - openai is an optional extra
        except ImportError as error:
            raise EndpointError(
                "sampling needs openai, which cannot be imported; pip install 'apportion[vote]'"
            ) from error
        usage = Usage()
        key, (url, query) = key_in(self.api_key_env), self._split_url
        secrets = secret_texts([*self.headers.values(), *query.values()], self.extra_body)
        http = Http(
            url,
            self.concurrency,
            headers={"authorization": f"Bearer {key or 'none'}", **self.headers},
            query=query,
            own_headers=list(self.headers),
            hidden={**dict.fromkeys(secrets, "[secret]"), **({key: "[key]"} if key else {})},
        )
        server = Server(http, self.request, usage, self.timeout_seconds, self.max_retries, key is not None)
        client = Client(server.ask, usage, self.concurrency, self.seed)
        try:
            yield client
        finally:
            await client.aclose()
            await http.aclose()


def key_in(variable: str) -> str | None:
    """Return the key in the environment variable with this name. Raise EndpointError for one that cannot be sent."""
    key = os.environ.get(variable, "").strip()
    if not key.isascii() or not key.isprintable():
        raise EndpointError(f"the key in {variable} must be of printable ASCII characters, got others; set it again")
    return key or None


def _check_header(name: Any, value: Any) -> None:
    """Raise ValueError, without the value, unless both can be sent as a header of HTTP."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
        raise ValueError(f"headers must have names of letters, digits and hyphens, got {shown(name)}; correct it")
    if name.lower() in OF_THE_CLIENT:
        raise ValueError(f"headers must not hold {name}, which the client sets; leave it out")
    if not isinstance(value, str) or not value.isascii() or not value.isprintable() or value != value.strip():
        raise ValueError(
            f"headers must have values of printable ASCII characters, got another for {name}; set it again"
        )


def check_url(name: str, url: str, query: bool = True) -> None:
    """Raise ValueError unless the setting with this name is the address of a web server, without a key.

    A ``query`` may be allowed.
    """
    # the URL without user, query and fragment, which may be secret
    bare = re.sub(r"^(\w*:?//)[^/]*@", r"\1", re.split(r"[?#]", url)[0])[:200]
    if not url.startswith(("http://", "https://")):
        host = re.sub(r"^\w*:?//", "", bare)
        raise ValueError(f"{name} must start with http:// or https://, got {bare!r}; write http://{host}")
    try:
        parts = urlsplit(url)
        named = parts.hostname and parts.port != 0
    except ValueError:
        named = False
    if not named:
        raise ValueError(f"{name} must name a host, and a port from 1 to 65535, got {bare!r}; correct it")
    if parts.path.rstrip("/").endswith("/completions"):
        end = parts.path.partition("/chat/completions")[0].removesuffix("/completions")
        raise ValueError(f"{name} must end before /chat/completions, got {bare!r}; write {parts.scheme}://...{end}")
    if parts.username or parts.password:
        raise ValueError(f"{name} must not hold a name or password, because it is written to files; remove them")
    if not query and (parts.query or parts.fragment):
        raise ValueError(f"{name} must not hold a query; requests carry the key, or api_key_env names it")
