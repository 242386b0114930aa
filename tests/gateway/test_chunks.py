"""Replies in pieces and from pieces."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.endpoint.completion import BadReply
from apportion.endpoint.stream import Assembly, Body
from apportion.gateway.replies import PIECE, chunks_of

TEXT = st.text(min_size=1, max_size=20)
CALL = st.fixed_dictionaries(
    {"id": TEXT, "type": st.just("function"), "function": st.fixed_dictionaries({"name": TEXT, "arguments": TEXT})}
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": st.one_of(st.none(), TEXT, st.text(min_size=PIECE, max_size=PIECE + 9))},
    optional={
        "reasoning_content": TEXT,
        "refusal": TEXT,
        "tool_calls": st.lists(CALL, min_size=1, max_size=3),
        "annotations": st.lists(st.fixed_dictionaries({"type": TEXT}), min_size=1),
    },
)
LOGPROBS = st.fixed_dictionaries(
    {"content": st.lists(st.fixed_dictionaries({"token": TEXT, "logprob": st.floats(-9, 0)}))}
)
CHOICE = st.fixed_dictionaries(
    {"index": st.just(0), "message": MESSAGE, "finish_reason": st.sampled_from(["stop", "length", "tool_calls"])},
    optional={"logprobs": LOGPROBS, "stop_reason": TEXT},
)
STOP = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


@given(choice=CHOICE)
def test_a_choice_in_chunks_is_the_same_choice_again(choice):
    made = Assembly()
    for chunk in chunks_of(choice):
        assert len(chunk["delta"].get("content") or "") <= PIECE
        made.add({"id": "a", "choices": [chunk]})
    assert made.reply() == {"id": "a", "object": "chat.completion", "choices": [choice]}


def test_tool_calls_are_joined_by_their_index():
    made = Assembly()
    for piece in (
        {"index": 0, "id": "a", "type": "function", "function": {"name": "add", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"x"'}},
        {"index": 1, "id": "b", "function": {"name": "sub", "arguments": "{}"}},
        {"index": 0, "id": "a", "function": {"name": "add", "arguments": ": 1}"}},
    ):
        made.add({"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]})
    made.add(STOP)
    assert made.reply()["choices"][0]["message"]["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}},
        {"id": "b", "function": {"name": "sub", "arguments": "{}"}},
    ]


def test_a_text_beside_parts_is_one_of_them():
    made = Assembly()
    for content in ("It ", "is", [{"type": "text", "text": " 4"}], "."):
        made.add({"choices": [{"delta": {"content": content}, "finish_reason": "stop"}]})
    assert made.reply()["choices"][0]["message"]["content"] == ["It is", {"type": "text", "text": " 4"}, "."]


@pytest.mark.parametrize("size", [1, 2, 7, 10**6])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_stream_is_the_same_in_pieces_of_any_size(size, end):
    chunks = [{"choices": [{"delta": {"content": word}}]} for word in ("4", "\u00e9")]
    lines = [": hello", "", *(f"data: {json.dumps(chunk, ensure_ascii=False)}\n" for chunk in chunks), "data: [DONE]"]
    sent = "\n".join(lines).replace("\n", end).encode() + end.encode()
    body = Body()
    done = [body.add(sent[place : place + size]) for place in range(0, len(sent), size)]
    assert done[-1] or end == "\r"  # else half of an end of the line
    assert body.reply()["choices"][0]["message"]["content"] == "4\u00e9"


def test_a_line_of_many_pieces_and_endless_white_space_are_read_in_linear_time():
    started, body, empty = time.process_time(), Body(), Body()
    body.add(b'data: {"choices": [{"finish_reason": "stop", "text": "')
    for _ in range(40_000):
        body.add(b"x" * 500)
        empty.add(b" " * 500)
    body.add(b'"}]}\n\n')
    assert len(body.reply()["choices"][0]["text"]) == 20_000_000 and not empty.raw
    assert time.process_time() - started < 5


def test_log_probabilities_of_chunks_are_joined():
    made = Assembly()
    for token in ("4", "2"):
        made.add({"choices": [{"delta": {"content": token}, "logprobs": {"content": [{"token": token}]}}]})
    made.add({"choices": [{"delta": {}, "logprobs": None, "finish_reason": "stop"}]})
    made.add({"choices": [], "usage": {"completion_tokens": 2}})
    [choice] = made.reply()["choices"]
    assert choice["logprobs"] == {"content": [{"token": "4"}, {"token": "2"}]}
    assert made.reply()["usage"] == {"completion_tokens": 2} and choice["message"]["content"] == "42"


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": 3},
        {"choices": ["a"]},
        {"choices": [{"delta": "a"}]},
        {"choices": [{"index": "a"}]},
        {"choices": [{"delta": {"tool_calls": "a"}}]},
        {"choices": [{"delta": {"tool_calls": ["a"]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": "0"}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": "add"}]}}]},
    ],
)
def test_chunks_of_another_form_are_refused(chunk):
    with pytest.raises(BadReply, match="a chunk whose"):
        Assembly().add(chunk)


def test_a_long_text_in_many_chunks_is_joined_in_linear_time():
    """The completion of a model that thinks: three hundred thousand tokens, one a chunk."""
    made, started = Assembly(), time.process_time()
    for place in range(300_000):
        made.add({"choices": [{"index": 0, "delta": {"content": "word ", "reasoning_content": str(place % 10)}}]})
    made.add(STOP)
    message = made.reply()["choices"][0]["message"]
    assert len(message["content"]) == 1_500_000 and len(message["reasoning_content"]) == 300_000
    assert time.process_time() - started < 5  # a second; quadratic time is half a minute
