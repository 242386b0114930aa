"""A gateway on loopback before a scripted upstream server, and an openai client for it."""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from apportion.allocators import Voting
from apportion.endpoint import seed_of
from apportion.gateway import GatewayLimits, GatewaySettings, UpstreamSettings
from apportion.stopping import make_rule
from tests.endpoint.builders import run
from tests.endpoint.fault_server import FaultServer, ok

openai = pytest.importorskip("openai")
pytest.importorskip("uvicorn")

from apportion.gateway.server import GatewayServer, listen  # noqa: E402 - uvicorn is an optional extra

MESSAGES = [{"role": "user", "content": "6 x 7?"}]


@dataclass
class Place:
    """A running gateway: its upstream server, an openai client, its server object and its port."""

    upstream: FaultServer
    client: Any
    server: GatewayServer
    port: int

    @property
    def root(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def queue(self):
        return self.server.app.state.gateway.queue

    async def ask(self, **fields):
        """Return the openai client's completion for one question."""
        return await self.client.chat.completions.create(**{"model": "tiny", "messages": MESSAGES, **fields})


def settings(url, **given):
    """Return settings of a gateway. ``given`` are fields of any of their classes, and ``rule``."""
    rule = given.pop("rule", "posterior_predictive")

    def fields_of(cls):
        return {name: given.pop(name) for name in list(given) if name in cls.__dataclass_fields__}

    limits = GatewayLimits(**{"queue_seconds": 10.0, "deadline_seconds": 20.0, **fields_of(GatewayLimits)})
    upstream = UpstreamSettings(url, **{"request_seconds": 5.0, "max_retries": 1, **fields_of(UpstreamSettings)})
    voting = Voting(make_rule(rule), **{"max_samples": 16, **fields_of(Voting)})
    return GatewaySettings(upstream, voting, **{"equivalence": "exact", **given}, limits=limits)


@asynccontextmanager
async def gateway(script=(), **given):
    """Run a gateway before a server with this script. Both have ended when the block has."""
    async with FaultServer(script) as upstream:
        url = given.pop("url", upstream.url)
        sock = listen("127.0.0.1", 0)
        server = GatewayServer(settings(url, **given))
        running = asyncio.create_task(server.serve(sockets=[sock]))
        port = sock.getsockname()[1]
        client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="the-key", max_retries=0)
        try:
            while not server.started:
                assert not running.done(), "the gateway did not start"
                await asyncio.sleep(0.01)
            yield Place(upstream, client, server, port)
        finally:
            await client.close()
            server.stop()
            await running
            sock.close()


def served(script=(), *, seconds=20.0, **given):
    """Run an asynchronous test on a gateway with these settings before a server with this script."""

    def decorate(test):
        async def scenario():
            async with gateway(script, **given) as place:
                await test(place)

        return lambda: run(scenario(), seconds)

    return decorate


def streamed(text, *, delay=0.0, every=0.0, tokens=5, **message):
    """A stream of one choice after ``delay`` seconds, a word every ``every`` seconds, with usage if it is asked for."""

    async def reply(request, send):
        await asyncio.sleep(delay)
        said = text(request) if callable(text) else text
        await send(STREAM)
        deltas = [{"role": "assistant", "content": ""}, *({n: v} for n, v in message.items())]
        deltas += [{"content": word} for word in said.split(" ")[:1]]
        deltas += [{"content": f" {word}"} for word in said.split(" ")[1:]]
        for delta in deltas:
            await send(chunk(request, [{"index": 0, "delta": delta, "finish_reason": None}]))
            await asyncio.sleep(every)
        await send(chunk(request, [{"index": 0, "delta": {}, "finish_reason": "stop"}]))
        if tokens is not None and request.body.get("stream_options", {}).get("include_usage"):
            usage = {"prompt_tokens": len(MESSAGES[0]["content"]), "completion_tokens": tokens}
            await send(chunk(request, [], usage=usage))
        await send(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    return reply


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(request, choices, **fields):
    """Return one event as a chunk of an HTTP body."""
    whole = {"id": f"chat-{request.number}", "object": "chat.completion.chunk", "created": 1, "model": "tiny", **fields}
    data = b"data: " + json.dumps({**whole, "choices": choices}).encode() + b"\n\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def by_sample(answers, seed=0, **settings):
    """Answer sample k of a request with this ``seed`` by the k-th answer, or the last; None states no answer."""
    numbers = {seed_of(seed, "", number): number for number in range(64)}

    def behaviour(request):
        number = numbers.get(request.seed, 0) if request.seed is not None else request.number
        answer = answers[min(number, len(answers) - 1)]
        text = f"sample {number}: no idea" if answer is None else f"sample {number}. Answer: {answer}"
        return either(text, **settings)

    return behaviour


def either(text, **settings):
    """A stream if the request asks for one, else a whole reply; ``settings`` are those of ``streamed``."""

    async def reply(request, send):
        if request.body.get("stream"):
            await streamed(text, **settings)(request, send)
            return
        message = {name: value for name, value in settings.items() if name not in ("delay", "every", "tokens")}
        await asyncio.sleep(settings.get("delay", 0.0))
        await ok(text, **message)(request, send)

    return reply


def ballot(completion):
    """Return the ballot of a completion, or of a chunk, of the openai client."""
    return completion.model_extra["apportion"]
