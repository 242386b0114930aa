"""A dead or misdirected server ends the run within seconds. One bad prompt, or a busy server, does not."""

import asyncio
import time

import pytest

from apportion.endpoint import EndpointError, http, retries
from apportion.endpoint import health as rules
from apportion.endpoint.health import FEWEST, Health
from tests.endpoint.builders import endpoint, run, sample, take, texts
from tests.endpoint.fault_server import (
    FaultServer,
    cut_before,
    endless,
    html_page,
    malformed,
    ok,
    packed,
    redirected,
    refused,
)
from tests.soak import case

pytest.importorskip("openai")


@pytest.fixture
def quick(monkeypatch):
    """Shorter waits, and a server that is suspected sooner."""
    monkeypatch.setattr(retries, "LONGEST_WAIT", 0.2)
    monkeypatch.setattr(rules, "FIRST_SECONDS", 0.3)
    monkeypatch.setattr(rules, "LATER_SECONDS", 0.6)


def error_of(script, prompts=8, seconds=8.0, **settings):
    """Return the error that ends a run of many prompts, which must come within ``seconds``."""

    async def scenario():
        async with FaultServer(script) as server, endpoint(server, **settings).connect() as client:
            with pytest.raises(EndpointError) as caught:
                await asyncio.gather(*(take(client, f"prompt {key}", 8, key=str(key)) for key in range(prompts)))
            await client.aclose()
            return str(caught.value), server

    started = time.monotonic()
    error, server = run(scenario(), 30.0)
    assert time.monotonic() - started < seconds
    return error, server


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "said", "prompts"),
    [
        case(fault, said, prompts, suite=prompts == suite)
        for fault, said, suite in (
            (refused(500, "crashed"), "the server answered 500: crashed", 8),
            (refused(502, "no backend"), "the server answered 502: no backend", 1),
            (cut_before(), "the server broke the connection (Server disconnected without sending a response.)", 1),
            (malformed(), "the server sent a reply that is not JSON", 8),
        )
        for prompts in (1, 8)
    ],
)
def test_a_server_that_fails_for_all_ends_the_run(fault, said, prompts):
    error, server = error_of(fault, prompts)
    assert f"must answer, got {error.split('got ')[1].split()[0]} failures within" in error
    assert f"({said}), and for a plain prompt too ({said}); check the server and base_url, then run again" in error
    assert "1 + 1 =" in [request.prompt for request in server.requests]


def test_a_page_for_browsers_ends_the_run_at_once():
    error, server = error_of(html_page(), seconds=4.0)
    assert 'sent a page for browsers "Sign in" and not a reply; check base_url, which often ends in /v1, and' in error
    assert len(server.requests) <= 8 * 8


def test_a_page_behind_a_redirect_is_named():
    def script(request):
        return html_page() if "user" in request.path else redirected("/v1/chat/completions?user=me")

    error, _ = error_of(script, seconds=4.0)
    assert "not a reply, after a redirect to http://127.0.0.1" in error and "user" not in error


def test_a_redirect_loop_ends_the_run_at_once():
    error, server = error_of(redirected(), prompts=1, seconds=4.0)
    assert "was redirected 4 times, at last to http://127.0.0.1" in error
    assert len(server.requests) == 8 and server.requests[-1].prompt == "1 + 1 ="


def test_a_redirect_is_followed_and_takes_own_headers_to_the_same_host_only():
    async def scenario():
        async with FaultServer() as there:
            for url in (there.url, there.url.replace("127.0.0.1", "localhost")):
                moved = redirected(f"{url}/chat/completions")
                async with FaultServer(moved) as here, endpoint(here, headers={"X-Key": "abcdef"}).connect() as client:
                    assert None not in texts(await take(client, "a", 1))
            assert [request.headers.get("x-key") for request in there.requests] == ["abcdef", None]

    run(scenario())


def test_a_refusal_of_everything_ends_the_run_at_once_and_later_too():
    error, _ = error_of(refused(400, "top_k is wrong"), seconds=4.0)
    assert error.endswith("answered 400: top_k is wrong, for a plain prompt too; change the setting that it names")
    late = ok(delay=0.5)  # answers still arrive when the server has begun to refuse
    error, _ = error_of(lambda request: refused(400, "no credit") if request.number > 4 else late)
    assert error.endswith("answered 400: no credit, for a plain prompt too; change the setting that it names")


@pytest.mark.parametrize("body", [endless, lambda: packed(2**22)])
def test_a_reply_that_is_too_long_is_cut_off_and_not_retried(body, monkeypatch):
    monkeypatch.setattr(http, "MAX_REPLY_BYTES", 2**20)
    started = time.monotonic()
    found, server, _ = sample([body()])
    assert (found[0].error or "").startswith("the server sent a reply of more than 1,048,576 bytes")
    assert len(server.requests) == 1 and time.monotonic() - started < 4


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_one_bad_prompt_among_good_ones_does_not_end_the_run():
    """Also if it is the first, if the good ones are slow, and if it is alone in the end."""

    def script(request):
        bad = refused(500, "crashed by this prompt")
        return bad if "bad" in request.prompt else ok(delay=0.9) if "slow" in request.prompt else ok()

    async def scenario(prompts, **settings):
        async with FaultServer(script) as server, endpoint(server, max_retries=8, **settings).connect() as client:
            return await asyncio.gather(*(take(client, prompt, 2, key=prompt) for prompt in prompts))

    for found in (run(scenario(["bad", "slow a", "slow b"])), run(scenario(["bad", "a", "b"], concurrency=1))):
        assert [texts(each)[0] is None for each in found] == [True, False, False]


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_server_that_stops_answering_ends_the_run_after_a_while():
    error, _ = error_of(lambda request: refused(500, "crashed") if request.number > 20 else ok(delay=0.05))
    assert "since its last answer (the server answered 500: crashed), and for a plain prompt too" in error


@pytest.mark.usefixtures("quick")
def test_a_server_that_comes_back_in_time_is_forgiven(monkeypatch):
    monkeypatch.setattr(rules, "LATER_SECONDS", 60.0)
    failing = [ok(most=1), *[refused(500)] * 4]
    found, server, _ = sample(failing, count=2)
    assert None not in texts(found) and len(server.requests) == 6


def outcomes(*ended, seconds=100.0):
    """Return the health after attempts with these outcomes, of which the first failure was ``seconds`` ago."""
    health = Health()
    for outcome in ended:
        health.end(health.start(), outcome)
    health.since -= seconds
    return health


def test_the_rules_of_suspicion():
    failures = ["failed"] * FEWEST
    assert outcomes(*failures).is_suspect
    assert not outcomes(*failures[1:]).is_suspect
    assert not outcomes(*failures, "answered").is_suspect
    assert not outcomes(*failures, "busy").is_suspect
    assert outcomes(*failures, "unknown").is_suspect
    assert outcomes(*failures, seconds=rules.FIRST_SECONDS + 1).is_suspect
    assert not outcomes("answered", *failures, seconds=rules.FIRST_SECONDS + 1).is_suspect
    assert outcomes("answered", *failures).is_suspect
    late = ["late"] * FEWEST
    assert not outcomes(*late, seconds=rules.FIRST_SECONDS + 1).is_suspect and outcomes(*late).is_suspect
    waiting = Health()
    token = waiting.start()
    for _ in range(FEWEST):
        waiting.end(waiting.start(), "failed")
    waiting.since += 0.001  # the clock may not have moved on since the token
    assert not waiting.is_suspect
    waiting.end(token, "failed")
    waiting.since -= 100
    assert waiting.is_suspect
