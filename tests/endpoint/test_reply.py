"""Replies become completions with texts, tokens and reasons, for any body."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.endpoint.completion import Fault
from apportion.endpoint.reply import error_text, read_reply
from apportion.endpoint.stream import read_body
from tests.cases import check_refused, lines
from tests.endpoint.builders import asked, sample, take, texts
from tests.endpoint.fault_server import ok, raw


@asked([ok("half \ud83d", finish_reason="\ud83d")])
async def test_lone_surrogates_become_question_marks(server, client):
    (found,) = await take(client, "half \ud83d", 1, key="\ud83d")
    assert (server.requests[0].prompt, found.text, found.finish_reason) == ("half ?", "half ?", "?")


def test_choices_are_taken_by_their_index_and_a_reply_that_is_too_long_is_cut():
    three = b'{"choices": [{"index": 2, "text": "2"}, {"index": 0, "text": "0"}, {"index": 1, "text": "1"}]}'
    assert texts(sample([raw(200, three)], 2)[0]) == ["0", "1"]


def test_a_filtered_choice_is_a_sample_without_text():
    found, _, client = sample([ok(lambda *_: None, finish_reason="content_filter")])
    assert (found[0].text, found[0].finish_reason, found[0].error) == ("", "content_filter", None)
    assert client.usage.retries == 0


def read(body):
    """Return the completions in the body of a reply."""
    return read_reply(read_body(body))


def reply(*choices, **fields):
    return read(json.dumps({"choices": choices, **fields}).encode())


def message(content, **fields):
    return {"message": {"role": "assistant", "content": content, **fields}}


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_kept_apart_from_the_text(name):
    found, _, _ = sample([ok("4", **{name: "two and two"})], 2)
    assert [(each.text, each.reasoning) for each in found] == [("4", "two and two")] * 2
    (filtered,) = reply(message(None, **{name: "two"}))
    assert (filtered.text, filtered.reasoning) == ("", "two")


def test_reasoning_that_two_fields_repeat_is_read_once():
    (found,) = reply(message("4", reasoning_content="two", reasoning="two"))
    assert found.reasoning == "two"


def test_the_texts_of_parts_are_joined_and_thoughts_are_kept_apart():
    parts = """[
        {"type": "thinking", "thinking": [{"type": "text", "text": "two "}]},
        {"type": "thinking", "thinking": "and two"},
        {"type": "text", "text": "It is "},
        {"type": "image_url", "image_url": {"url": "http://x"}},
        {"type": "output_text", "text": "4"},
        "."
    ]"""
    (found,) = reply(message(json.loads(parts)))
    assert (found.text, found.reasoning) == ("It is 4.", "two and two")
    assert reply(message("4"))[0].reasoning is None


def test_a_refusal_by_the_model_is_the_text_of_a_choice_without_another():
    alone, part = message(None, refusal="I cannot"), message([{"type": "refusal", "refusal": "I cannot"}])
    assert texts(reply(alone, part, message("4", refusal="no"))) == ["I cannot", "I cannot", "4"]


def events(*chunks):
    """Return a stream of these chunks, which are JSON."""
    return "".join(f"data: {chunk}\n\n" for chunk in chunks).encode()


DONE = b"data: [DONE]\n\n"
OPEN = b'data: {"choices": [{"index": 0, "delta": {"content": "It is"}, "finish_reason": null}]}\n\n'
CUT = b"""\
data: {"choices": [{"index": 1, "delta": {"role": "assistant", "content": ""}}]}

data: {"choices": [{"index": 0, "delta": {"role": "assistant", "reasoning_content": "two "}}]}

data: {"choices": [{"index": 0, "delta": {"reasoning_content": "and two"}}]}

data: {"choices": [{"index": 1, "delta": {"content": "5"}}]}

data: {"choices": [{"index": 0, "delta": {"content": "It is"}}]}

data: {"choices": [{"index": 0, "delta": {"content": [{"type": "text", "text": " 4"}]}}]}

data: {"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]}

"""
"""A stream of two choices, of which one has not ended."""
WHOLE = (
    CUT
    + b"""\
data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}

data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 30}}

"""
)


def test_a_stray_line_does_not_break_a_stream_that_has_ended():
    assert texts(read(b": hello\n\nping\n\n" + WHOLE + b"error: late\n\n")) == ["It is 4", "5"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("done", [DONE, b""])
def test_a_stream_is_read_as_the_reply_that_it_adds_up_to(end, done):
    whole = reply(
        {**message("It is 4", reasoning_content="two and two"), "finish_reason": "stop"},
        {**message("5"), "finish_reason": "length"},
        usage={"prompt_tokens": 9, "completion_tokens": 30},
    )
    assert read(b": a comment\n\n" + (WHOLE + done).replace(b"\n", end)) == whole
    assert whole[0].reasoning == "two and two" and sum(each.tokens or 0 for each in whole) == 30


def test_a_stream_of_plain_completions_is_read():
    chunks = (f'{{"choices": [{{"index": 0, "text": "{text}", "finish_reason": null}}]}}' for text in ("1", "/", "2"))
    assert texts(read(events(*chunks) + DONE)) == ["1/2"]


BAD = r"""
    not JSON at all => a reply that is not JSON
    []              => a reply without choices
    {"id": "reply"} => a reply without choices
    {"id": "reply", "choices": null}    => a reply without choices
    {"error": {"message": "no memory"}} => a reply without choices: no memory
    {"choices": [{}]}                   => a choice without message or text
    {"choices": ["4"]}                  => a reply whose choices are not objects
    data: [DONE]&                       => a reply without choices
    OPEN                                => a stream that was cut off before its end
    OPENdata: {"error": {"message": "no memory"}}&data: [DONE]& => an error in a stream: no memory
    OPENdata: {"object": "error", "message": "no memory", "code": 500}&data: [DONE]& => an error in a stream: no memory
    event: error%data: {"message": "no memory"}& => an error in a stream: no memory
    OPENerror: {"message": "no memory"}&         => an error in a stream: no memory
    error: {"message": "no memory"}&data: [DONE]& => an error in a stream: no memory
    OPEN{"error": {"message": "no memory"}}      => an error in a stream: no memory
    OPENInternal Server Error&                   => an error in a stream: Internal Server Error
    data: {half&                                 => a stream with an event that is not JSON
    data: []&data: [DONE]&                       => a stream with an event that is not a chunk
    data: {"choices": [{"index": "a"}]}&    => a chunk whose choices are not objects with an index and a delta
    data: {"choices": [{"index": 0, "delta": {"content": 5}}]}&data: [DONE]& => a choice whose content is not a text
"""
"""Bodies, and what they are: & ends an event and % a line; OPEN is a choice that has begun."""


def test_what_is_no_reply_is_a_bad_reply():
    def sent(body):
        read(body.replace("&", "\n\n").replace("%", "\n").encode().replace(b"OPEN", OPEN))

    deep = '{"choices": ' + "[" * 100 + "]" * 100 + "}"
    cases = [*lines(BAD), (deep, "a reply with more than 64 levels.*")]
    check_refused(Fault, sent, [(body, f"^sent {problem}$") for body, problem in cases])


def test_a_streamed_reply_is_sampled_and_one_that_was_cut_is_sent_again():
    found, server, client = sample([raw(200, CUT), raw(200, WHOLE)], count=2, max_retries=1)
    assert texts(found) == ["It is 4", "5"] and [request.n for request in server.requests] == [2, 2]
    assert client.usage.retries == 1 and client.usage.completion_tokens == 30


def test_tokens_are_shared_out_and_counted():
    found, _, client = sample([ok(lambda _, place: "x" * (10 * place), tokens=7)], count=3)
    assert [completion.tokens for completion in found] == [0, 7, 14]
    assert [completion.prompt_tokens for completion in found] == [7, 0, 0]
    assert (client.usage.prompt_tokens, client.usage.completion_tokens) == (7, 21)


@pytest.mark.parametrize("count", [10**400, 2**63, -1, 1.5, "9"])
def test_a_count_that_cannot_be_is_unknown(count):
    reply = {"choices": [{"text": "a"}], "usage": {"prompt_tokens": 9, "completion_tokens": count}}
    (found,) = read(json.dumps(reply).encode())
    assert (found.tokens, found.prompt_tokens) == (None, 9)


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.lists(st.text(max_size=30), min_size=1, max_size=20))
def test_shares_of_tokens_add_up(total, contents):
    reply = {"choices": [{"text": text} for text in contents], "usage": {"completion_tokens": total}}
    shares = [completion.tokens or 0 for completion in read(json.dumps(reply).encode())]
    assert sum(shares) == total and min(shares) >= 0
    whole = sum(len(text) + 1 for text in contents)
    assert all(abs(share - total * (len(text) + 1) / whole) <= 1 for share, text in zip(shares, contents, strict=True))


NAMES = """message delta text content index type choices usage error finish_reason thinking reasoning refusal
completion_tokens"""
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(NAMES.split()),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(NAMES.split()), inner),
)
replies = st.fixed_dictionaries({"choices": json_values | st.lists(json_values), "usage": json_values})
streams = st.lists(json_values | replies).map(lambda chunks: events(*map(json.dumps, chunks)) + DONE)


@settings(max_examples=100)
@given(st.binary() | st.binary().map(b"data:".__add__) | replies.map(lambda each: json.dumps(each).encode()) | streams)
def test_any_body_is_completions_or_a_bad_reply(body):
    try:
        found = read(body)
    except Fault:
        return
    assert found and all(isinstance(completion.text, str) and completion.error is None for completion in found)


@given(json_values)
def test_any_error_has_a_text(error):
    assert isinstance(error_text(error), str)
