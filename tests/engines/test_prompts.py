"""Prompts from rows of a data set, and texts of completions."""

import numpy as np
import pytest
from datasets import Dataset

from apportion import Prompt
from apportion.engines.prompts import last_text, prompt_of, text_of


def test_the_id_depends_on_the_text_only():
    plain = prompt_of({"prompt": "6 x 7?", "answer": "42"})
    assert plain == Prompt("6 x 7?") == prompt_of({"prompt": "6 x 7?", "answer": "?"})
    assert prompt_of({"prompt": [{"role": "user", "content": "6 x 7?"}]}).id == plain.id


def test_the_prompt_is_the_same_after_a_round_trip_through_a_data_set():
    rows = [{"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "6 x 7?"}]}]
    assert prompt_of(Dataset.from_list(rows)[0]) == prompt_of(rows[0])


def test_without_a_prompt_the_id_depends_on_the_whole_row():
    asked = [prompt_of({"environment": "maze", "seed": seed}) for seed in (1, 2)]
    empty = [prompt_of({"prompt": [{"role": "user", "content": ""}], "seed": seed}) for seed in (1, 2)]
    assert len({prompt.id for prompt in (*asked, *empty)}) == 4
    assert prompt_of({"seed": 1, "environment": "maze"}) == asked[0]


def test_content_in_parts_is_joined_and_messages_without_any_are_left_out():
    parts = [{"type": "text", "text": "6 x "}, {"type": "text", "text": "7?"}, {"type": "image"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None}, {"role": "tool"}]
    assert text_of([{"role": "system", "content": "Be brief."}, *messages]) == "Be brief.\n\n6 x 7?"


def test_last_text_is_that_of_the_last_message():
    assert last_text("42") == "42"
    messages = [
        {"role": "assistant", "content": "Let me see.", "tool_calls": []},
        {"role": "tool", "content": "41"},
        {"role": "assistant", "content": [{"type": "text", "text": "42"}]},
    ]
    assert last_text(messages) == "42"
    assert last_text([]) == "" == last_text([{"role": "assistant"}])


@pytest.mark.parametrize("id", [None, float("nan"), np.float64("nan")])
def test_a_row_without_a_value_for_its_id_is_refused(id):
    """All such rows would count as one prompt."""
    with pytest.raises(ValueError, match=r"must have a value in every row, got (None|nan) in 'number' of .*6 x 7"):
        prompt_of({"prompt": "6 x 7?", "number": id}, id_column="number")
