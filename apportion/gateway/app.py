"""The application: routes, bounds on requests, and errors in OpenAI's form.

A request must be JSON by its content type. A web page cannot send that to another origin without being asked first, so
no page that a user visits can spend the user's key. On loopback the Host header must be a name of this machine, so that
no other name can be made to lead here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from apportion.answers import AnswerFunctionError, make_equivalence
from apportion.endpoint.settings import key_in
from apportion.gateway.body import VoteRequest, read_request
from apportion.gateway.errors import SERVER, GatewayError
from apportion.gateway.queue import VoteQueue
from apportion.gateway.replies import encode, respond, whole_reply
from apportion.gateway.settings import GatewaySettings
from apportion.gateway.upstream import Bill, Upstream
from apportion.gateway.vote import RunningVote

UNREAD = 4
"""A body that is too long is read to its end before it is refused, if it is at most this multiple of the bound."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Gateway:
    """The routes of one application, and what they share while it runs.

    Args:
        settings: how to vote, where, and within which bounds.
        hosts: names that the Host header may have; None allows all.

    Raises ValueError without the key that the settings name, and ImportError if the equivalence is not installed.
    """

    def __init__(self, settings: GatewaySettings, hosts: tuple[str, ...] | None = LOOPBACK) -> None:
        limits = settings.limits
        self.settings = settings
        self.hosts = hosts
        self.queue = VoteQueue(limits.max_votes, limits.max_queue, limits.queue_seconds)
        self.equivalence = make_equivalence(settings.equivalence, **settings.equivalence_settings)
        key, variable = None, settings.upstream.api_key_env
        if variable is not None and (key := key_in(variable)) is None:
            said = "must hold a key of printable ASCII characters, got none; set it, or another name"
            raise ValueError(f"{variable} {said}")
        self.upstream = Upstream(settings.upstream, key)

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Close what requests share when the server ends."""
        try:
            yield
        finally:
            await self.upstream.aclose()
            await self.equivalence.aclose()

    async def chat(self, request: Request) -> Response:
        """Answer ``POST /v1/chat/completions``."""
        self._check_host(request)
        content_type = request.headers.get("content-type", "")
        if content_type.partition(";")[0].strip().lower() != "application/json":
            raise GatewayError(415, "the content type must be application/json, got another; set Content-Type")
        limits = self.settings.limits
        asked = read_request(await _body(request, limits.max_body_bytes, limits.body_seconds), self.settings)
        headers = self.upstream.headers(request.headers)
        vote = asyncio.create_task(self._vote(asked, headers))
        return await respond(request, vote, asked.stream, asked.include_usage, limits.keep_alive_seconds)

    async def models(self, request: Request) -> Response:
        """Answer ``GET /v1/models`` as upstream does."""
        return _json(await self._models(request))

    async def model(self, request: Request) -> Response:
        """Answer ``GET /v1/models/NAME`` from the list of upstream, because not every server has that route."""
        name, found = request.path_params["name"], await self._models(request)
        models = found.get("data") if isinstance(found, dict) else None
        if not isinstance(models, list):
            raise GatewayError(502, "the upstream server sent no list of models; check --upstream", kind=SERVER)
        for model in models:
            if isinstance(model, dict) and model.get("id") == name:
                return _json(model)
        said = f"the model must be one of upstream's, got {name!r:.80}; GET /v1/models lists them"
        raise GatewayError(404, said, param="model", code="model_not_found")

    async def health(self, request: Request) -> Response:
        """Answer ``GET /health`` without asking upstream."""
        self._check_host(request)
        queue = self.queue
        status = "closing" if queue.closed else "ok"
        return _json({"status": status, "votes": queue.running, "queued": queue.waiting})

    async def _models(self, request: Request) -> Any:
        self._check_host(request)
        return await self.upstream.get("models", self.upstream.headers(request.headers))

    async def _vote(self, asked: VoteRequest, headers: Mapping[str, bytes]) -> dict[str, Any]:
        """Wait for a turn, vote, and return the reply."""
        bill = Bill()

        async def draw(number: int) -> dict[str, Any]:
            return await self.upstream.sample(asked.upstream_body(number), headers, bill)

        vote = RunningVote(asked, draw, self.equivalence, self.settings.give_up)
        async with self.queue.turn():
            try:
                await vote.run(self.settings.limits.deadline_seconds)
            except AnswerFunctionError as error:
                raise GatewayError(500, str(error), kind=SERVER, code="answer_function") from error
        return whole_reply(vote, bill)

    def _check_host(self, request: Request) -> None:
        host = request.url.hostname
        if self.hosts is not None and host not in self.hosts:
            raise GatewayError(403, f"the host must be {self.hosts[0]}, got {host!r:.80}; or start with --host")


def make_app(settings: GatewaySettings, hosts: tuple[str, ...] | None = LOOPBACK) -> Starlette:
    """Return the ASGI application. ``app.state.gateway`` is its ``Gateway``."""
    gateway = Gateway(settings, hosts)
    handlers: Mapping[Any, Callable[..., Any]] = {GatewayError: _refused, HTTPException: _not_found, Exception: _broken}
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", gateway.chat, methods=["POST"]),
            Route("/v1/models", gateway.models),
            Route("/v1/models/{name:path}", gateway.model),
            Route("/health", gateway.health),
        ],
        exception_handlers=handlers,
        lifespan=gateway.lifespan,
    )
    app.state.gateway = gateway
    return app


async def _body(request: Request, most: int, seconds: float) -> bytes:
    """Return the body. Raise GatewayError if it is too long or takes too long.

    The rest of a long body is read up to a bound, because a client that is still sending may not see the reply.
    """
    body, size, declared = bytearray(), 0, request.headers.get("content-length", "0")
    too_large = GatewayError(413, f"the body must have at most {most:,} bytes, got more; send less", last=True)
    if not declared.isdecimal() or len(declared) > 18 or int(declared) > UNREAD * most:
        raise too_large
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size <= most:
                    body += part
                elif size > UNREAD * most:
                    raise too_large
    except TimeoutError:
        raise GatewayError(408, f"the body must arrive within {seconds:g} s; send it again", last=True) from None
    except ClientDisconnect:
        raise GatewayError(400, "the body must be whole, but the client left; send it again") from None
    if size > most:
        raise too_large
    return bytes(body)


def _json(data: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode(data), status, headers, "application/json")


async def _refused(request: Request, error: GatewayError) -> Response:
    return _json(error.body(), error.status, error.headers())


async def _not_found(request: Request, error: HTTPException) -> Response:
    """Answer a wrong path or method."""
    has = "POST /v1/chat/completions, GET /v1/models and GET /health"
    said = f"there is no {request.method} {request.url.path:.80} here; there are {has}"
    return await _refused(request, GatewayError(error.status_code, said))


async def _broken(request: Request, error: Exception) -> Response:
    """Answer an internal error, which the server logs."""
    return await _refused(request, GatewayError(500, "the gateway failed; see its log", kind=SERVER))
