"""Replies become completions with texts, tokens and reasons, for any body."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.endpoint import Completion
from apportion.endpoint.completion import BadReply, read_reply
from tests.endpoint.builders import endpoint, run, sample, take, texts
from tests.endpoint.fault_server import (
    FaultServer,
    null_content,
    ok,
    raw,
)


def test_lone_surrogates_become_question_marks() -> None:
    async def scenario() -> list[Completion]:
        async with FaultServer([ok("half \ud83d")]) as server, endpoint(server).connect() as client:
            found = await take(client, "half \ud83d", 1, key="\ud83d")
            assert server.requests[0].prompt == "half ?"
            return found

    assert texts(run(scenario())) == ["half ?"]


def test_a_reply_that_is_too_long_is_cut() -> None:
    two = {"choices": [{"text": "first"}, {"text": "second"}]}
    found, _, _ = sample([raw(200, json.dumps(two).encode())])
    assert texts(found) == ["first"]


def test_a_filtered_choice_is_a_sample_without_text() -> None:
    found, _, client = sample([null_content()])
    assert (found[0].text, found[0].finish_reason, found[0].error) == ("", "content_filter", None)
    assert client.usage.retries == 0


def test_reasoning_is_not_part_of_the_text() -> None:
    found, _, _ = sample([ok("4", reasoning_content="two and two"), ok(lambda *_: None, reasoning_content="two")], 2)
    assert texts(found) == ["4", "4"]


def test_tokens_are_shared_out_and_counted() -> None:
    found, _, client = sample([ok(lambda _, place: "x" * (10 * place), tokens=7)], count=3)
    assert [completion.tokens for completion in found] == [0, 7, 14]
    assert [completion.prompt_tokens for completion in found] == [7, 0, 0]
    assert (client.usage.prompt_tokens, client.usage.completion_tokens) == (7, 21)


def test_tokens_that_the_server_does_not_count_are_unknown() -> None:
    found, _, client = sample([ok(tokens=None)])
    assert (found[0].tokens, found[0].prompt_tokens) == (None, None)
    assert client.usage.completion_tokens == 0


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.lists(st.text(max_size=30), min_size=1, max_size=20))
def test_shares_of_tokens_add_up(total: int, contents: list[str]) -> None:
    reply = {"choices": [{"text": text} for text in contents], "usage": {"completion_tokens": total}}
    shares = [completion.tokens or 0 for completion in read_reply(json.dumps(reply).encode())]
    assert sum(shares) == total and min(shares) >= 0
    whole = sum(len(text) + 1 for text in contents)
    assert all(abs(share - total * (len(text) + 1) / whole) <= 1 for share, text in zip(shares, contents, strict=True))


def test_choices_are_taken_by_their_index() -> None:
    reply = {"choices": [{"index": place, "text": str(place)} for place in (2, 0, 1)]}
    assert texts(read_reply(json.dumps(reply).encode())) == ["0", "1", "2"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["message", "text", "content", "index"]), inner),
)


@settings(max_examples=50)
@given(st.binary() | st.fixed_dictionaries({"choices": json_values | st.lists(json_values), "usage": json_values}))
def test_any_body_is_completions_or_a_bad_reply(body: bytes | dict[str, Any]) -> None:
    try:
        found = read_reply(body if isinstance(body, bytes) else json.dumps(body).encode())
    except BadReply:
        return
    assert found and all(isinstance(completion.text, str) and completion.error is None for completion in found)
