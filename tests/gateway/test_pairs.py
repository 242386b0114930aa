"""Two faults at once: what the upstream server does, and what the client does. The gateway must survive each pair.

After each pair it answers another request, holds no slot and no vote, and has left no upstream request open.
"""

import asyncio
from contextlib import suppress

import pytest

from tests.endpoint.builders import run, until
from tests.endpoint.fault_server import cut_before, cut_inside, malformed, refused, silent
from tests.gateway.builders import MESSAGES, STREAM, ballot, chunk, either, gateway, openai, streamed
from tests.soak import case


def dies_in_a_stream():
    """A stream that breaks off after its first chunk."""

    async def reply(request, send):
        await send(STREAM)
        await send(chunk(request, [{"index": 0, "delta": {"content": "It is"}, "finish_reason": None}]))
        await asyncio.sleep(0.05)
        raise ConnectionAbortedError

    return reply


UPSTREAM = {
    "silent": silent,
    "endless stream": lambda: streamed("a b c", every=60),
    "dies in a stream": dies_in_a_stream,
    "cut before": cut_before,
    "cut inside": cut_inside,
    "malformed": malformed,
    "500": lambda: refused(500, "engine died", ["Retry-After: 0"]),
    "429": lambda: refused(429, "slow down", ["Retry-After: 0"]),
    "401": lambda: refused(401, "wrong key"),
    "slow": lambda: either("Answer: 42", delay=0.2),
}


async def waits(place):
    """A client that waits for its reply."""
    await place.ask()


async def leaves(place):
    """A client that leaves after a moment."""
    await place.ask(timeout=0.1)


async def leaves_a_stream(place):
    """A client that opens a stream and leaves."""
    async with await place.ask(stream=True, timeout=0.15) as stream:
        async for _ in stream:
            break


async def comes_with_others(place):
    """Six clients for two votes and two places in the queue."""
    found = await asyncio.gather(*(place.ask(timeout=1.0) for _ in range(6)), return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException) and not isinstance(each, openai.APIError):
            raise each


async def sends_garbage(place):
    """A client that sends half a request, beside one that waits."""
    _, writer = await asyncio.open_connection("127.0.0.1", place.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
    writer.write(b"Content-Length: 1000\r\n\r\n{")
    await writer.drain()
    writer.close()
    await place.client.chat.completions.create(model="tiny", messages=MESSAGES, timeout=0.1)


CLIENTS = {
    "waits": waits,
    "leaves": leaves,
    "leaves a stream": leaves_a_stream,
    "comes with others": comes_with_others,
    "sends garbage": sends_garbage,
}


async def pair(fault, client):
    """Put one pair of faults to a gateway, and return the seconds until it answers another request."""
    healthy = False

    def script(_):
        return either("Answer: 42") if healthy else fault()

    limits = {"max_votes": 2, "max_queue": 2, "queue_seconds": 0.5, "deadline_seconds": 1.0, "keep_alive_seconds": 0.05}
    async with gateway(script, connections=4, request_seconds=0.6, max_retries=1, max_samples=8, **limits) as place:
        with suppress(openai.APIError):  # what the client gets is checked elsewhere
            await client(place)
        healthy, loop = True, asyncio.get_running_loop()
        started, queue = loop.time(), place.server.app.state.gateway.queue
        await until(lambda: queue.running == queue.waiting == 0)
        await until(lambda: place.upstream._in_flight == 0)
        assert ballot(await place.ask())["answer"] == "42"
        assert place.upstream.most_in_flight <= 4
        return loop.time() - started


PAIRS = [
    case(fault, client, suite=number % len(CLIENTS) == place)
    for number, fault in enumerate(UPSTREAM)
    for place, client in enumerate(CLIENTS)
]
"""In the suite each fault meets one client, and each client two faults."""


@pytest.mark.parametrize(("fault", "client"), PAIRS)
def test_the_gateway_survives_a_pair_of_faults(fault, client):
    assert run(pair(UPSTREAM[fault], CLIENTS[client])) < 3
