"""The policy of failures at the gateway: what one upstream fault costs, as for the command in tests/endpoint."""

import asyncio
import time

import pytest

from apportion.endpoint import retries, seed_of
from tests.endpoint.builders import run
from tests.endpoint.fault_server import ok, raw, refused
from tests.gateway.builders import STREAM, ballot, chunk, either, gateway

FOUR = {"rule": "fixed", "max_samples": 4, "curtail": False}


async def own_of(script, **given):
    async with gateway(script, **FOUR | given) as place:
        found = ballot(await place.ask(seed=0))
        return found


def test_an_upstream_that_loads_is_waited_for(monkeypatch):
    monkeypatch.setattr(retries, "LONGEST_BUSY_WAIT", 0.1)
    until = time.monotonic() + 1.5
    loading = refused(503, "Loading model")
    own = run(own_of(lambda _: loading if time.monotonic() < until else either("Answer: 42")))
    assert (own["samples"], own["failed"], own["votes"]) == (4, 0, {"42": 4}) and own["requests"] > 8


@pytest.mark.parametrize("fault", [refused(400, "json_validate_failed"), ok("Answer: 7", finish_reason="error")])
def test_one_refused_or_broken_completion_of_many_casts_no_vote_and_ends_none(fault):
    lost = seed_of(0, "", 1)
    own = run(own_of(lambda request: fault if request.seed == lost else either("Answer: 42"), max_retries=0))
    assert (own["samples"], own["failed"], own["votes"], own["stopped"]) == (5, 1, {"42": 4}, "max_samples")


def test_a_reason_that_is_no_text_counts_as_none_and_tool_calls_that_are_no_objects_cast_no_vote():
    lost = seed_of(0, "", 1)
    for calls in ([None], {"name": "add"}):
        fault = ok("", tool_calls=calls)
        odd = ok("Answer: 42", finish_reason={"type": "stop"})
        own = run(own_of(lambda request, fault=fault, odd=odd: fault if request.seed == lost else odd, max_retries=0))
        assert (own["failed"], own["votes"]) == (1, {"42": 4}) and "tool calls are not objects" in own["errors"][0]


def test_a_request_is_not_sent_again_if_the_server_says_so_and_costs_one_sample():
    lost = seed_of(0, "", 1)
    fault = raw(500, b"Internal Server Error", ["X-Should-Retry: false"])
    own = run(own_of(lambda request: fault if request.seed == lost else either("Answer: 42"), max_retries=3))
    assert (own["requests"], own["failed"], own["votes"]) == (5, 1, {"42": 4})
    assert own["errors"] == ["the upstream server answered 500: Internal Server Error"]


def test_what_is_cut_off_while_it_thinks_does_not_vote():
    cut = {seed_of(0, "", number) for number in (0, 2)}

    def script(request):
        thinking = ok("So the answer is 7. Wait", finish_reason="length")
        return thinking if request.seed in cut else ok("Is it 7?</think>Answer: 42", finish_reason="length")

    own = run(own_of(script, upstream_stream=False))
    assert (own["votes"], own["unparsed"]) == ({"42": 2}, 2)


ENDED = {
    "content_filter": (1, 0), "sensitive": (1, 0), "SAFETY": (1, 0), "RECITATION": (1, 0), "refusal": (1, 0),
    "model_context_window_exceeded": (1, 0), "MAX_TOKENS": (1, 0), "max_output_tokens": (1, 0),
    "network_error": (0, 1), "insufficient_system_resource": (0, 1), "CANCELLED": (0, 1), "timeout": (0, 1),
    "stop_sequence": (0, 0), "eos_token": (0, 0), "COMPLETE": (0, 0), "end_turn": (0, 0),
}  # fmt: skip
"""Reasons why a completion ended, whether it then holds no answer, and whether it is a failed sample."""


@pytest.mark.parametrize("reason", ENDED)
def test_what_a_server_broke_off_or_filtered_casts_no_vote(reason):
    odd, lost = ok("First guess: the answer is 7", finish_reason=reason), seed_of(0, "", 1)
    own = run(own_of(lambda request: odd if request.seed == lost else either("Answer: 42"), max_retries=0))
    assert (own["unparsed"], own["failed"]) == ENDED[reason]
    assert own["votes"].get("7", 0) == (ENDED[reason] == (0, 0))


def test_a_stream_that_an_error_line_breaks_is_a_failed_sample_with_its_reason():
    async def broken(request, send):
        await send(STREAM)
        await send(chunk(request, [{"index": 0, "delta": {"content": "Answer: 7"}, "finish_reason": None}]))
        line = b'error: {"code": 500, "message": "Context size has been exceeded."}\n\ndata: [DONE]\n\n'
        await send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(line), line))

    lost = seed_of(0, "", 1)
    own = run(own_of(lambda request: broken if request.seed == lost else either("Answer: 42"), max_retries=0))
    assert (own["failed"], own["votes"]) == (1, {"42": 4})
    assert own["errors"] == ["the upstream server sent an error in a stream: Context size has been exceeded."]


@pytest.mark.parametrize("usage", [True, False])
def test_a_stream_without_its_end_is_read_when_its_choices_have_ended(usage):
    async def reply(request, send):
        await send(STREAM.replace(b"text/event-stream", b"application/json"))  # servers declare other types
        await send(b"9\r\n: hello\n\n\r\n")
        await send(chunk(request, [{"index": 0, "delta": {"content": "Answer: 42"}, "finish_reason": "stop"}]))
        if usage:
            await asyncio.sleep(0.1)
            await send(chunk(request, [], usage={"prompt_tokens": 3, "completion_tokens": 5}))
        await asyncio.sleep(60)

    started = time.monotonic()
    own = run(own_of(lambda _: reply, max_samples=1, rule="fixed", request_seconds=60.0), 60)
    assert (own["votes"], own["uncounted"]) == ({"42": 1}, 0 if usage else 1)
    assert time.monotonic() - started < 40
