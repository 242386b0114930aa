"""Replies in pieces and from pieces."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.endpoint.completion import BadReply
from apportion.endpoint.stream import has_ended, join_chunks, read_body
from apportion.gateway.replies import PIECE, chunks_of
from tests.cases import lines

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


@given(choice=CHOICE)
def test_a_choice_in_chunks_is_the_same_choice_again(choice):
    chunks = list(chunks_of(choice))
    assert all(len(chunk["delta"].get("content") or "") <= PIECE for chunk in chunks)
    made = join_chunks([{"id": "a", "choices": [chunk]} for chunk in chunks])
    assert made == {"id": "a", "object": "chat.completion", "choices": [choice]}


def joined(*choices):
    """Return the one choice that these pieces add up to."""
    (choice,) = join_chunks([{"choices": [{"index": 0, "delta": {}, **each}]} for each in choices])["choices"]
    return choice


def calls(pieces):
    """Return the tool calls that these pieces add up to."""
    return joined(*({"delta": {"tool_calls": [piece]}} for piece in pieces))["message"]["tool_calls"]


def test_tool_calls_are_joined_by_their_index():
    pieces = r"""[
        {"index": 0, "id": "a", "type": "function", "function": {"name": "add", "arguments": ""}},
        {"index": 0, "function": {"arguments": "{\"x\""}},
        {"index": 1, "id": "b", "function": {"name": "sub", "arguments": "{}"}},
        {"index": 0, "id": "a", "function": {"name": "add", "arguments": ": 1}"}}
    ]"""
    whole = r"""[
        {"id": "a", "type": "function", "function": {"name": "add", "arguments": "{\"x\": 1}"}},
        {"id": "b", "function": {"name": "sub", "arguments": "{}"}}
    ]"""
    assert calls(json.loads(pieces)) == json.loads(whole)


@pytest.mark.parametrize("indexes", [(0, 1), (0, 0), (1, 2), (-1, 0), (1, 0), (None, None)])
@pytest.mark.parametrize("size", [5, 99])
@pytest.mark.parametrize(("ids", "names"), [("ab", ("weather", "clock")), ("ab", ("f", "f")), (("", ""), ("f", "g"))])
def test_parallel_tool_calls_stay_apart_whatever_their_index(indexes, size, ids, names):
    if indexes == (None, None) and ids[0] == "":
        return  # nothing says where the pieces belong, but all servers send an id or an index
    texts = ['{"city": "London"}', '{"zone": "UTC"}']
    pieces = []
    for index, id, name, text in zip(indexes, ids, names, texts, strict=True):
        first, *rest = (text[place : place + size] for place in range(0, len(text), size))
        own = [{"id": id, "function": {"name": name, "arguments": first}}]
        own += [{"function": {"arguments": each}} for each in rest]
        pieces += [each if index is None else each | {"index": index} for each in own]
    made = [each["function"] for each in calls(pieces)]
    assert {(each["name"], each["arguments"]) for each in made} == {*zip(names, texts, strict=True)}


def test_a_text_beside_parts_is_one_of_them():
    made = joined(*({"delta": {"content": each}} for each in ("It ", "is", [{"type": "text", "text": " 4"}], ".")))
    assert made["message"]["content"] == ["It is", {"type": "text", "text": " 4"}, "."]


def test_log_probabilities_of_chunks_are_joined():
    pieces = [{"delta": {"content": each}, "logprobs": {"content": [{"token": each}]}} for each in ("4", "2")]
    choice = joined(*pieces, {"logprobs": None, "finish_reason": "stop"})
    assert choice["logprobs"] == {"content": [{"token": "4"}, {"token": "2"}]} and choice["message"]["content"] == "42"


OTHER = """
    3
    ["a"]
    [{"delta": "a"}]
    [{"index": "a"}]
    [{"delta": {"tool_calls": "a"}}]
    [{"delta": {"tool_calls": ["a"]}}]
    [{"delta": {"tool_calls": [{"index": "0"}]}}]
    [{"delta": {"tool_calls": [{"index": 0, "function": "add"}]}}]
"""


def test_chunks_of_another_form_are_refused():
    for (choices,) in lines(OTHER):
        with pytest.raises(BadReply, match="a chunk whose"):
            join_chunks([{"choices": json.loads(choices)}])


def test_a_long_text_in_many_chunks_is_read_in_linear_time():
    """The completion of a model that thinks, one token a chunk, and then one chunk of 20 MB in many pieces."""
    started, raw = time.process_time(), bytearray()
    for place in range(50_000):
        delta = {"content": "word ", "reasoning_content": str(place % 10)}
        raw += b"data: " + json.dumps({"choices": [{"delta": delta, "finish_reason": None}]}).encode() + b"\n\n"
        assert not has_ended(raw)
    raw += b'data: {"choices": [{"stop_reason": "'
    for _ in range(40_000):
        raw += b"x" * 500
        assert not has_ended(raw)
    raw += b'", "finish_reason": "stop"}]}\n\n'
    assert has_ended(raw)
    choice = read_body(raw)["choices"][0]
    assert len(choice["message"]["content"]) == 250_000 and len(choice["message"]["reasoning_content"]) == 50_000
    assert len(choice["stop_reason"]) == 20_000_000
    assert time.process_time() - started < 10  # two seconds; quadratic time is minutes
