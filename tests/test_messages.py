import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.messages import chat_messages, make_messages, prompt_hash, prompt_text
from apportion.types import prompt_id
from tests.cases import check_refused, lines

USER = {"role": "user", "content": "6 x 7?"}
SYSTEM = {"role": "system", "content": "Be brief."}


def test_messages_of_parquet_have_fields_that_are_none():
    assert make_messages([SYSTEM | {"name": None}, USER]) == (SYSTEM, USER)


def test_what_is_not_chat_messages_is_refused():
    wrong = r"""
        []                                      => chat messages must be a list of 1 to 10,000, got
        "6 x 7?"                                => chat messages must be a list
        {"role": "user"}                        => chat messages must be a list
        [{"role": "system", "content": "Be brief."}] => must hold a text of the role "user", got none
        [{"role": "user", "content": " "}]      => must hold a text of the role "user"
        ["6 x 7?"]                              => a chat message must have a role
        [{"role": "tool", "content": "a"}]      => a chat message must have a role
        [{"role": "user", "content": [{"type": "text", "text": "a"}]}] => a content that is a text
        [{"role": "user", "content": "a", "tool_calls": []}] => and nothing else
        [{"role": "user", "content": "a\ud800"}] => must be Unicode
    """
    check_refused(ValueError, lambda text: make_messages(json.loads(text)), lines(wrong))


def test_the_system_prompt_comes_first_and_only_once():
    assert chat_messages((USER,), "Be brief.") == [SYSTEM, USER]
    assert chat_messages((SYSTEM, USER)) == [SYSTEM, USER]
    with pytest.raises(
        ValueError, match=r"must have one system message, got 'Be brief\.' in it and the setting system"
    ):
        chat_messages((SYSTEM, USER), "Be long.")


def test_the_hash_depends_on_the_content_only():
    assert prompt_hash("6 x 7?") == prompt_id("6 x 7?")
    assert prompt_hash((USER,)) == prompt_hash((dict(reversed(USER.items())),)) == "7a8c44dd66f199bbb2a9316ef32cb6bf"
    assert len({prompt_hash(each) for each in ("6 x 7?", (USER,), (SYSTEM, USER), (USER, SYSTEM))}) == 4


values = st.recursive(
    st.none() | st.integers() | st.text() | st.sampled_from(["user", "system"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["role", "content", "name"]), inner),
)


@given(values | st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": values})))
def test_any_value_is_messages_or_a_value_error(value):
    try:
        made = make_messages(value)
    except ValueError:
        return
    assert prompt_text(made).strip() and make_messages(made) == made and prompt_hash(made)
