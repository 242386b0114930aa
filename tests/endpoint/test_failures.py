"""The policy of failures: what one fault costs. Each case is a server that faults in one way, beside good replies.

The faults are those of public reports: one refused sample of many, a crash over one long sample, a rate limit without
Retry-After, a model that loads, an error in a reply with status 200, and one page for browsers.
"""

import random
import time

import pytest

from apportion.endpoint import retries
from apportion.endpoint import server as server_module
from tests.cases import lines
from tests.endpoint.builders import sample, texts
from tests.endpoint.fault_server import ok, raw, refused

COUNT = 40


@pytest.mark.parametrize("status", [400, 422])
def test_one_refused_sample_of_many_costs_nothing(status):
    """The server refuses a tenth of all requests at random, plain prompts too."""
    draw = random.Random(0)

    def script(request):
        return refused(status, "Failed to generate JSON") if draw.random() < 0.1 else ok(most=1)

    found, _, _ = sample(script, COUNT)
    assert [each.error for each in found] == [None] * COUNT and len(set(texts(found))) == COUNT


def test_a_crash_over_one_sample_of_many_loses_none_of_the_others():
    def script(request):
        return refused(500, "out of memory") if request.n > 1 else ok()

    found, server, _ = sample(script, 8, max_retries=3)
    assert [each.error for each in found] == [None] * 8
    assert [request.n for request in server.requests] == [8, 8] + [1] * 8
    assert len({request.seed for request in server.requests}) == 9  # each is asked for with a seed of its own


@pytest.mark.parametrize(
    ("status", "said"),
    [(429, "Rate limit reached."), (503, "Loading model"), (503, "model is overloaded"), (429, "Try again in 50ms")],
)
def test_waiting_for_a_busy_server_costs_no_sample(monkeypatch, status, said):
    """It is busy for longer than all retries take."""
    monkeypatch.setattr(retries, "LONGEST_BUSY_WAIT", 0.1)
    until = time.monotonic() + 1.5

    def script(request):
        return refused(status, said) if time.monotonic() < until else ok()

    found, server, _ = sample(script, 2, max_retries=1)
    assert [each.error for each in found] == [None] * 2 and len(server.requests) > 5


BUSY = """
    {"error": {"code": 429, "message": "Rate limit exceeded"}}
    {"choices": [], "error": {"code": 429, "message": "Rate limit exceeded"}}
    {"choices": [{"index": 0, "message": {"content": ""}}], "error": {"code": 429, "message": "Rate limit exceeded"}}
    {"choices": [{"index": 0, "message": {"content": ""}, "error": {"code": 429}, "finish_reason": "error"}]}
    {"error": {"code": "429", "message": "slow down"}}
    {"error": {"type": "rate_limit_error", "message": "slow down"}}
    {"error": {"status": "RESOURCE_EXHAUSTED", "message": "slow down"}}
    {"error": "429 Too Many Requests"}
    {"code": 429, "message": "slow down"}
    [{"error": {"code": 429, "message": "Rate limit exceeded"}}]
    {"type": "error", "error": {"type": "overloaded_error", "message": "Busy"}}
    {"detail": "Rate limit reached"}
    {"status": "error", "msg": "Too many requests"}
    {"base_resp": {"status_code": 1002, "status_msg": "rate limit"}, "choices": null}
    {"errors": [{"message": "slow down", "code": 429}]}
    {"choices": [], "error": {"code": "1302", "message": "您的账户已达到速率限制"}}
"""
"""Bodies of replies with status 200 that say that the server is busy."""


@pytest.mark.parametrize("body", [body for (body,) in lines(BUSY)])
@pytest.mark.parametrize("stream", [False, True])
def test_a_rate_limit_in_a_reply_of_status_200_is_waited_for_as_any_other(monkeypatch, body, stream):
    monkeypatch.setattr(retries, "LONGEST_BUSY_WAIT", 0.02)
    sent = f"data: {body}\n\ndata: [DONE]\n\n" if stream and body.startswith("{") else body
    found, server, _ = sample([raw(200, sent.encode())] * 5, 1, max_retries=1)
    assert found[0].error is None and len(server.requests) == 6


def test_another_error_in_a_reply_of_status_200_costs_one_sample():
    broken = raw(200, b'{"error": {"code": 500, "message": "no memory"}}')
    found, server, _ = sample([broken] * 2, 1, max_retries=1)
    assert found[0].error == "the server sent a reply without choices: no memory" and len(server.requests) == 2
    unpaid = raw(200, b'{"error": {"code": "insufficient_quota", "message": "pay first"}}')
    found, server, _ = sample([unpaid], 1, max_retries=1)
    assert "pay first" in found[0].error and len(server.requests) == 1


def test_an_error_whose_fields_are_empty_is_none():
    body = b'{"choices": [{"message": {"content": "4"}}], "error": {"code": null, "message": null}}'
    assert texts(sample([raw(200, body)], 1)[0]) == ["4"]


def test_want_of_credit_is_not_waited_for():
    found, server, _ = sample(refused(429, "No credit: insufficient_quota"), 1)
    assert "insufficient_quota" in found[0].error and len(server.requests) == 1


def test_a_server_that_stays_busy_is_given_up(monkeypatch):
    monkeypatch.setattr(retries, "BUSY_SECONDS", 0.3)
    started = time.monotonic()
    found, _, _ = sample(refused(429, "Rate limit reached."), 1)
    assert found[0].error == "the server answered 429: Rate limit reached." and time.monotonic() - started < 5


@pytest.mark.parametrize(
    "reason",
    [
        "error",
        "abort",
        "network_error",
        "insufficient_system_resource",
        "CANCELLED",
        "deadline_exceeded",
        "out_of_memory",
    ],
)
def test_a_completion_that_the_server_broke_off_is_no_sample(reason):
    """Two of four choices of a reply with status 200, and then the only one."""

    def script(request):
        return ok("So the answer is 7", finish_reason=reason) if len(seen) < 3 and not seen.append(1) else ok()

    seen = []
    found, _, _ = sample(script, 4)
    assert [each.finish_reason for each in found] == ["stop"] * 4


def test_one_page_for_browsers_does_not_end_a_run_in_which_others_succeed():
    page = raw(200, b"<!doctype html><title>Just a moment</title>")
    found, server, _ = sample([page], 3)
    assert [each.error for each in found] == [None] * 3 and server.requests[1].prompt == "1 + 1 ="


@pytest.mark.parametrize("busy", [True, False])
def test_a_server_that_answers_nothing_is_named_once(busy, monkeypatch, caplog):
    """Else a run waits for minutes, and nobody knows for what."""
    monkeypatch.setattr(server_module, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(retries, "LONGEST_BUSY_WAIT", 0.1)
    until = time.monotonic() + 1.0
    limited = refused(429, "Rate limit reached.")
    sample(lambda _: limited if busy and time.monotonic() < until else ok(delay=0.6), 4)
    said = [each.getMessage() for each in caplog.records if "answered nothing for 0 s" in each.getMessage()]
    why = "the server answered 429: Rate limit reached." if busy else "requests are in flight"
    assert len(said) == 1 and f"({why}): it may be busy, hang" in said[0] and "given up after 5 s" in said[0]
