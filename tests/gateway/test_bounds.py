"""Bounds of the gateway, its errors, and load: requests that are too large, too many, too slow, or of a wrong kind."""

import asyncio
import json
import socket
from contextlib import suppress

import pytest

from apportion.endpoint.http import HTTP
from apportion.gateway import server
from tests.cases import lines
from tests.endpoint.builders import run, until
from tests.endpoint.fault_server import cut_before, cut_inside, malformed, raw, refused, silent
from tests.gateway.builders import MESSAGES, ballot, by_sample, either, gateway, listen, openai, served, streamed

BODY = json.dumps({"model": "tiny", "messages": MESSAGES}).encode()
JSON = {"content-type": "application/json"}


HEAD = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def whole(body):
    """Return a request with this body as it is sent."""
    return f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def post(place, body, headers=JSON, path="/v1/chat/completions"):
    """Return the raw reply to a body."""
    async with HTTP.AsyncClient() as client:
        return await client.post(f"{place.root}{path}", content=body, headers=headers)


BODIES = r"""
    {                                        => must be JSON
    {"a": NaN}                               => NaN
    {"a": 1e999}                             => must be JSON
    []                                       => JSON object
    {}                                       => messages must be
    {"messages": []}                         => messages must be
    {"messages": [{}], "n": "2"}             => n must be
    {"messages": [{}], "n": 0}               => n must be
    {"messages": [{}], "seed": 1.5}          => seed must be
    {"messages": [{}], "stream": "yes"}      => stream must be
    {"messages": [{}], "stream_options": 3}  => stream_options must be
    {"messages": [{"content": "\ud800"}]}    => surrogate
"""


@served(by_sample(["42"]), seconds=60)
async def test_a_body_that_cannot_be_used_is_refused_in_the_form_of_openai(place):
    for body, said in [*lines(BODIES), ("[" * 5000 + "]" * 5000, "nesting")]:
        reply = await post(place, body.encode())
        assert reply.status_code == 400 and place.upstream.requests == [], body
        error = reply.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
        assert said in error["message"] and len(error["message"]) < 500, body
    assert (await post(place, b'{"messages": [{}], "stream_options": []}')).status_code == 200


@served(by_sample(["42"]))
async def test_requests_of_a_wrong_kind_are_refused(place):
    assert (await post(place, BODY, {"content-type": "text/plain"})).status_code == 415
    assert (await post(place, BODY, JSON | {"host": "evil.example"})).status_code == 403
    assert (await post(place, BODY, JSON | {"host": f"localhost:{place.port}"})).status_code == 200
    missing = await post(place, BODY, path="/v1/completions")
    assert missing.status_code == 404 and "/v1/chat/completions" in missing.json()["error"]["message"]
    async with HTTP.AsyncClient() as client:
        assert (await client.get(f"{place.root}/v1/chat/completions")).status_code == 405
        assert (await client.get(f"{place.root}/health")).json() == {"status": "ok", "votes": 0, "queued": 0}


@served(by_sample(["42"]), max_body_bytes=5000, body_seconds=0.2)
async def test_a_body_that_is_too_large_or_too_slow_is_refused(place):
    async def endless():
        while True:
            yield b" " * 1000

    assert (await post(place, b" " * 5001)).status_code == 413
    assert (await post(place, b" " * 19_000)).status_code == 413
    async with HTTP.AsyncClient() as client:
        url = f"{place.root}/v1/chat/completions"
        with suppress(HTTP.NetworkError):  # the connection is closed while the client is still sending
            assert (await client.post(url, content=endless(), headers=JSON)).status_code == 413
    reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
    writer.write(whole(b" " * 9)[:-8])
    assert b" 408 " in (await reader.read()).partition(b"\r\n")[0]  # to the end: the connection is closed
    writer.close()
    assert place.upstream.requests == []


def test_connections_without_a_request_do_not_fill_the_gateway(monkeypatch):
    monkeypatch.setattr(server, "HEAD_SECONDS", 2.0)

    async def scenario():
        async with gateway(by_sample(["42"])) as place:
            opened = [await asyncio.open_connection("127.0.0.1", place.port) for _ in range(3)]
            beginning = HEAD[:60].encode()
            opened[1][1].write(beginning)
            opened[2][1].write(whole(BODY))
            head = await opened[2][0].readuntil(b"\r\n\r\n")
            opened[2][1].write(beginning)  # of a second request
            assert b" 200 " in head.partition(b"\r\n")[0]
            for reader, writer in opened:
                await asyncio.wait_for(reader.read(), 60)  # to the end: the connection is closed
                writer.close()

    run(scenario())


def test_a_client_that_reads_its_reply_a_byte_at_a_time_loses_its_connection(monkeypatch):
    monkeypatch.setattr(server, "UNREAD_SECONDS", 1.0)

    async def scenario():
        async with gateway(either(f"{'x' * 4_000_000} Answer: 42"), max_samples=2, rule="fixed") as place:
            with socket.create_connection(("127.0.0.1", place.port)) as client:
                body = json.dumps({"model": "tiny", "messages": MESSAGES, "n": 2}).encode()
                client.sendall(whole(body))
                connections = place.server.server_state.connections
                await until(lambda: connections)
                client.setblocking(False)
                while connections:
                    await asyncio.sleep(0.05)
                    with suppress(BlockingIOError):
                        client.recv(1)
                assert place.upstream.requests and all(each.answered for each in place.upstream.requests)

    run(scenario(), 60)


@served(streamed("Answer: 42", delay=0.5), max_votes=1, max_queue=1)
async def test_a_full_queue_is_answered_with_429_and_the_time_to_come_back(place):
    waiting = [asyncio.create_task(place.ask()) for _ in range(2)]
    await until(lambda: place.queue.waiting == 1)
    with pytest.raises(openai.RateLimitError) as raised:
        await place.ask()
    assert raised.value.code == "queue_full" and 1 <= int(raised.value.response.headers["retry-after"]) <= 60
    assert [ballot(await each)["answer"] for each in waiting] == ["42", "42"]


@served(silent(), max_votes=1, queue_seconds=0.2, deadline_seconds=1)
async def test_a_long_wait_in_the_queue_is_answered_with_429(place):
    first = asyncio.create_task(place.ask())
    await until(lambda: place.queue.running == 1)
    with pytest.raises(openai.RateLimitError, match="no vote ended within"):
        await place.ask()
    with pytest.raises(openai.InternalServerError):
        await first


NESTED = b"[" * 200 + b"]" * 200
REPLIES = """
    400 => {"error": {"message": "bad tools"}}     => => 400 => bad tools
    429 => {"error": {"message": "slow down"}}     => Retry-After: 39.5 => 429 => slow down
    500 => {"error": {"message": "engine died"}}   => Retry-After-Ms: 1 => 502 => answered 500: engine died
    302 => => Location: http://127.0.0.1/login  => 502 => answered 302
    200 => <html>Log in</html>                  => => 502 => sent a page for browsers and not a reply; check --upstream
    200 => {"choices": [{"text": "42"}]}           => => 502 => without a message
"""
"""Replies of the upstream server: the status, the body and a header, and the status and the reason that they become."""
FAILURES = [
    (raw(int(status), body.encode(), [header] * bool(header)), int(becomes), said)
    for status, body, header, becomes, said in lines(REPLIES)
] + [
    (raw(200, b"[" * 100_000), 502, "not JSON"),
    (raw(200, b'{"choices": [{"message": {"a": %b}}]}' % NESTED), 502, "nesting"),
    (raw(400, b'{"error": {"message": %b}}' % NESTED), 400, "answered 400: {"),
    (cut_inside(), 502, "broke the connection"),
    (silent(), 504, "no whole reply within 0.3 s"),
    (raw(200, b" " * 200_000), 502, "more than 100,000 bytes"),
]


@pytest.mark.parametrize(("script", "status", "said"), FAILURES)
def test_upstream_failures_have_their_status_and_reason(script, status, said):
    async def scenario():
        async with gateway(script, max_retries=0, request_seconds=0.3, max_reply_bytes=100_000) as place:
            with pytest.raises(openai.APIStatusError) as raised:
                await place.ask()
            assert raised.value.status_code == status and said in raised.value.message
            assert place.queue.running == place.queue.waiting == 0
            if status == 429:
                assert raised.value.response.headers["retry-after"] == "40"

    run(scenario())


@served(url="http://127.0.0.1:9/v1", max_retries=0)
async def test_a_server_that_is_not_there_is_a_bad_gateway(place):
    with pytest.raises(openai.InternalServerError, match="cannot be reached"):
        await place.ask()
    with pytest.raises(openai.InternalServerError, match="cannot be reached"):
        await place.client.models.list()


FAULTS = [cut_before(), cut_inside(), refused(429, "slow", ["Retry-After: 0"]), malformed()]


@served(lambda request: [*FAULTS, either("Answer: 42")][min(request.number, 4)], max_retries=2)
async def test_a_failed_upstream_request_is_sent_again(place):
    own = ballot(await place.ask())
    assert own["failed"] == 0 and own["requests"] == own["samples"] + 4 and own["uncounted"] == 4


@served(streamed("Answer: 42", delay=0.5), max_votes=1)
async def test_a_graceful_stop_ends_votes_in_progress_and_refuses_those_that_wait(place):
    running = asyncio.create_task(place.ask())
    await until(lambda: place.queue.running == 1)
    waiting = asyncio.create_task(place.ask())
    await until(lambda: place.queue.waiting == 1)
    place.server.stop()
    assert ballot(await running)["answer"] == "42"
    with pytest.raises(openai.InternalServerError, match="shutting down"):
        await waiting


SLOW = either("Answer: 42", delay=0.01)


@served(SLOW, connections=4, max_votes=16, rule="fixed", max_samples=4, curtail=False, seconds=60)
async def test_many_votes_at_once_leave_the_upstream_bound_alone(place):
    """Each of 16 requests takes 4 samples, 4 at a time; none fails."""
    found = await asyncio.gather(*(place.ask() for _ in range(16)))
    assert [ballot(each)["samples"] for each in found] == [4] * 16
    assert len(place.upstream.requests) == 16 * 4 and 2 <= place.upstream.most_in_flight <= 4


def test_replies_are_sent_without_delay():
    """asyncio turns Nagle's algorithm off only for sockets whose protocol is named; otherwise replies wait 40 ms."""
    with listen("127.0.0.1", 0) as sock:
        assert sock.proto == socket.IPPROTO_TCP
