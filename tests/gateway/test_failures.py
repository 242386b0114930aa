"""The policy of failures at the gateway: what one upstream fault costs, as for the command in tests/endpoint."""

import asyncio
import time

import pytest

from apportion.endpoint import retries, seed_of
from tests.endpoint.builders import run
from tests.endpoint.fault_server import ok, raw, refused
from tests.gateway.builders import STREAM, ballot, chunk, either, gateway

ANSWER = either("Answer: 42")
FOUR = {"rule": "fixed", "max_samples": 4, "curtail": False}


def own_of(script, seconds=20.0, **given):
    """Return the ballot of one question before a server with this script."""

    async def scenario():
        async with gateway(script, **FOUR | given) as place:
            return ballot(await place.ask(seed=0))

    return run(scenario(), seconds)


def but_one(fault, other=ANSWER):
    """Return a script that answers the second sample by ``fault`` and the others by ``other``."""
    lost = seed_of(0, "", 1)
    return lambda request: fault if request.seed == lost else other


def test_an_upstream_that_loads_is_waited_for(monkeypatch):
    monkeypatch.setattr(retries, "LONGEST_BUSY_WAIT", 0.1)
    until = time.monotonic() + 1.5
    loading = refused(503, "Loading model")
    own = own_of(lambda _: loading if time.monotonic() < until else ANSWER)
    assert own == own | {"samples": 4, "failed": 0, "votes": {"42": 4}} and own["requests"] > 8


@pytest.mark.parametrize("fault", [refused(400, "json_validate_failed"), ok("Answer: 7", finish_reason="error")])
def test_one_refused_or_broken_completion_of_many_casts_no_vote_and_ends_none(fault):
    own = own_of(but_one(fault), max_retries=0)
    assert own == own | {"samples": 5, "failed": 1, "votes": {"42": 4}, "stopped": "max_samples"}


def test_a_reason_that_is_no_text_counts_as_none_and_tool_calls_that_are_no_objects_cast_no_vote():
    odd = ok("Answer: 42", finish_reason={"type": "stop"})
    for calls in ([None], {"name": "add"}):
        own = own_of(but_one(ok("", tool_calls=calls), odd), max_retries=0)
        assert own == own | {"failed": 1, "votes": {"42": 4}} and "tool calls are not objects" in own["errors"][0]


def test_a_request_is_not_sent_again_if_the_server_says_so_and_costs_one_sample():
    fault = raw(500, b"Internal Server Error", ["X-Should-Retry: false"])
    own = own_of(but_one(fault), max_retries=3)
    assert own == own | {"requests": 5, "failed": 1, "votes": {"42": 4}}
    assert own["errors"] == ["the upstream server answered 500: Internal Server Error"]


def test_what_is_cut_off_while_it_thinks_does_not_vote():
    cut = {seed_of(0, "", number) for number in (0, 2)}

    def script(request):
        thinking = ok("So the answer is 7. Wait", finish_reason="length")
        return thinking if request.seed in cut else ok("Is it 7?</think>Answer: 42", finish_reason="length")

    own = own_of(script, upstream_stream=False)
    assert own == own | {"votes": {"42": 2}, "unparsed": 2}


ENDED = {
    "unparsed": """content_filter sensitive SAFETY RECITATION refusal model_context_window_exceeded MAX_TOKENS
        max_output_tokens truncated incomplete""",
    "failed": "network_error insufficient_system_resource CANCELLED timed_out expired MALFORMED_FUNCTION_CALL",
    "votes": "stop_sequence eos_token COMPLETE end_turn",
}
"""What the reason why a completion ended makes of its answer."""


@pytest.mark.parametrize(("kind", "reason"), [(kind, each) for kind in ENDED for each in ENDED[kind].split()])
def test_what_a_server_broke_off_or_filtered_casts_no_vote(kind, reason):
    own = own_of(but_one(ok("First guess: the answer is 7", finish_reason=reason)), max_retries=0)
    assert own == own | {"unparsed": kind == "unparsed", "failed": kind == "failed"}
    assert own["votes"].get("7", 0) == (kind == "votes")


def test_a_stream_that_an_error_line_breaks_is_a_failed_sample_with_its_reason():
    async def broken(request, send):
        await send(STREAM)
        await send(chunk(request, [{"index": 0, "delta": {"content": "Answer: 7"}, "finish_reason": None}]))
        line = b'error: {"code": 500, "message": "Context size has been exceeded."}\n\ndata: [DONE]\n\n'
        await send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(line), line))

    own = own_of(but_one(broken), max_retries=0)
    assert own == own | {"failed": 1, "votes": {"42": 4}}
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
    own = own_of(reply, 60, max_samples=1, request_seconds=60.0)
    assert own == own | {"votes": {"42": 1}, "uncounted": 0 if usage else 1}
    assert time.monotonic() - started < 40
