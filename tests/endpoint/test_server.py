"""Requests to a failing server are sent again, given up, or end the run. The key is never shown."""

import time
from email.utils import formatdate

import pytest

from apportion.endpoint import Completion, Endpoint, EndpointError, seed_of
from tests.endpoint.builders import asked, endpoint, run, sample, single_texts, take, texts
from tests.endpoint.fault_server import (
    FaultServer,
    broken,
    cut_before,
    cut_inside,
    drip,
    malformed,
    ok,
    raw,
    refused,
    silent,
)

pytest.importorskip("openai")

KEY = "sk-0123456789abcdef"


@pytest.mark.parametrize(
    "fault", [cut_before(), cut_inside(), malformed(), *map(broken, (408, 409, 429, 500, 502, 503, 504))]
)
def test_a_request_without_a_reply_is_sent_again_with_its_seed(fault):
    found, server, client = sample([fault], count=2, max_retries=1)
    assert texts(found) == [f"{seed_of(0, 'q', 0)}.{place}" for place in range(2)]
    assert [request.seed for request in server.requests] == [seed_of(0, "q", 0)] * 2
    assert (client.usage.requests, client.usage.retries) == (2, 1)


@pytest.mark.slow
def test_retry_after_is_honoured_in_milliseconds_in_seconds_and_as_a_date():
    def seconds_of(*headers):
        _, server, _ = sample([refused(429, headers=[f"Retry-After{each}"]) for each in headers])
        return server.requests[-1].time - server.requests[0].time

    assert seconds_of("-Ms: 10", "-Ms: 10", "-Ms: 10") < 2  # without, 2.6 s at the least
    assert seconds_of(": 0.8") >= 0.8  # without, 0.5 s at the most
    assert seconds_of(f": {formatdate(time.time() + 1.9, usegmt=True)}") >= 0.8  # a date has whole seconds


def test_all_kinds_of_retries_have_one_limit():
    found, server, client = sample([broken(), malformed(), broken(), ok()], max_retries=2)
    assert len(server.requests) == 3 and client.usage.retries == 2
    assert found[0].error == "the server answered 500: the engine has crashed"


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (refused(500, "the engine has crashed"), "the server answered 500: the engine has crashed"),
        (raw(502, b"<html>\n<h1>Bad</h1>\n</html>"), "the server answered 502: <html> <h1>Bad</h1> </html>"),
        (raw(503, b""), "the server answered 503: no reason given"),
        (refused(429, headers=["Retry-After: 600"]), "the server answered 429: no"),
        (cut_before(), "the server broke the connection (Server disconnected without sending a response.)"),
        (cut_inside(), "the server broke the connection (peer closed connection without sending complete message body"),
        (raw(200, b"\xff\xfe"), "the server sent a reply that is not JSON"),
    ],
)
def test_a_failed_sample_gives_its_reason_and_the_run_goes_on(fault, error):
    async def scenario():
        async with FaultServer([fault]) as server, endpoint(server, max_retries=0).connect() as client:
            return [*await take(client, "a", 1, key="a"), *await take(client, "b", 1, key="b")]

    failed, good = run(scenario())
    assert failed == Completion(None, None, None, None, failed.error)
    assert failed.error.startswith(error)
    assert good.text == f"{seed_of(0, 'b', 0)}.0"


@pytest.mark.slow
@pytest.mark.parametrize("fault", [drip, silent])
def test_the_deadline_is_for_the_whole_body_and_lies_inside_the_retries(fault):
    started = time.monotonic()
    found, server, client = sample([fault()], timeout_seconds=0.3, max_retries=1)
    assert texts(found) == single_texts(range(1))
    assert [request.left for request in server.requests] == [True, False]
    assert (client.usage.requests, client.usage.retries, client.usage.cancelled) == (2, 1, 0)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("status", "remedy"),
    [(401, "set the key in the environment variable"), (403, "set the key"), (404, "check base_url and model")],
)
def test_an_error_that_no_retry_can_fix_ends_the_run(status, remedy):
    with pytest.raises(EndpointError, match=f"answered {status}: no; {remedy}"):
        sample([refused(status)])


@asked()
async def test_the_error_for_a_base_url_without_v1_suggests_it(server, client):
    async with Endpoint(server.root, "tiny").connect() as lost:
        with pytest.raises(EndpointError, match=r"answered 404: .*; try base_url http://127.0.0.1:\d+/v1, or check"):
            await take(lost, "a", 2)


def test_an_absent_server_ends_the_run_and_one_that_disappears_fails_samples():
    async def scenario():
        async with FaultServer() as server:
            url = server.url
        settings = Endpoint(url, "tiny", max_retries=1)
        async with settings.connect() as client:
            with pytest.raises(EndpointError, match=f"{url} cannot be reached .*; start the server, or correct"):
                await take(client, "a", 2)
        async with FaultServer() as server, endpoint(server, max_retries=0).connect() as client:
            assert texts(await take(client, "a", 1)) == single_texts(range(1))
            await server.__aexit__()
            assert [each.error[:20] for each in await take(client, "b", 2)] == ["the server cannot be"] * 2

    run(scenario())


def test_the_key_comes_from_the_named_variable_only(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-another")
    monkeypatch.setenv("MY_KEY", f"{KEY}\n")
    _, server, _ = sample(api_key_env="MY_KEY")
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    _, server, _ = sample(api_key_env="NO_SUCH_KEY")
    assert server.requests[0].headers["authorization"] == "Bearer none"


def test_a_key_that_cannot_be_sent_is_refused_without_being_shown(monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-\u2026secret")
    with pytest.raises(EndpointError, match="MY_KEY must be of printable ASCII") as caught:
        sample(api_key_env="MY_KEY")
    assert "secret" not in str(caught.value)
