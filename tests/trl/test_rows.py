"""Tables of rows are concatenated, selected and padded without losing or moving a token."""

import pytest
import torch

from apportion.trl.rows import (
    concatenate,
    make_table,
    pack_row,
    policy_tokens,
    select,
    split_table,
    spread_masked_rows,
)
from apportion.trl.shares import like

PAD = 9
TABLE = {
    "prompt_ids": torch.tensor([[9, 9, 5], [6, 7, 8], [9, 5, 6]]),
    "prompt_mask": torch.tensor([[0, 0, 1], [1, 1, 1], [0, 1, 1]]),
    "completion_ids": torch.tensor([[1, 2, 9, 9], [3, 4, 5, 6], [7, 9, 9, 9]]),
    "completion_mask": torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]),
    "tool_mask": torch.tensor([[1, 1, 1, 1], [1, 0, 1, 1], [1, 1, 1, 1]]),
    "old_per_token_logps": torch.tensor([[-1.0, -2.0, 0.0, 0.0], [-3.0] * 4, [-4.0, 0.0, 0.0, 0.0]]),
    "importance_sampling_ratio": torch.tensor([[0.5, 0.5, 1.0, 1.0], [0.6] * 4, [0.7, 1.0, 1.0, 1.0]]),
    "old_logps": torch.tensor([-3.0, -12.0, -4.0]),
}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(found[key], value), key


def test_split_rows_have_no_padding_and_concatenate_to_the_same_table():
    """The padding of ratios is 1, because TRL sums logarithms over whole rows."""
    rows = split_table(TABLE)
    assert [(row["prompt_ids"].size(1), row["completion_ids"].size(1)) for row in rows] == [(1, 2), (3, 4), (2, 1)]
    assert all(row["completion_ids"].untyped_storage().size() <= 8 * 4 for row in rows)
    assert_equal(concatenate(rows, PAD), TABLE)
    assert_equal(concatenate([concatenate(rows[:1], PAD), concatenate(rows[1:], PAD)], PAD), TABLE)
    whole = {key: value[:, :1] if key == "importance_sampling_ratio" else value for key, value in TABLE.items()}
    assert_equal(concatenate([select(whole, [0]), select(whole, [1, 2])], PAD), whole)  # one ratio a row


def test_a_row_for_a_later_step_takes_less_memory_and_loses_nothing():
    row = split_table(TABLE | {"prompt_ids": TABLE["prompt_ids"] + 150_000})[1]
    packed = pack_row(row)
    assert sum(value.nbytes for value in packed.values()) <= sum(value.nbytes for value in row.values()) / 2
    back = like(row, packed)
    assert_equal(back, row)
    assert all(back[key].dtype == row[key].dtype for key in row)
    with pytest.raises(ValueError, match="all columns of this step's loss, got one without ref; resume with the beta"):
        like({**row, "ref": row["prompt_ids"]}, packed)


def test_policy_tokens_exclude_those_of_tools():
    completions = [[5, 6, 7], [5, 6]]
    assert policy_tokens({}, completions) == [3, 2]
    assert policy_tokens({"tool_mask": torch.tensor([[1, 0, 1], [1, 1, 1]])}, completions) == [2, 2]
    # a truncated completion may be masked as a whole, but the policy wrote it
    assert policy_tokens({"tool_mask": torch.tensor([[0, 0, 0], [1, 1, 1]])}, completions) == [3, 2]


def test_a_table_is_trl_s_output_without_the_keys_of_the_batch_and_has_one_value_per_row():
    output = TABLE | {"advantages": torch.zeros(3), "num_items_in_batch": torch.tensor(3), "ref_per_token_logps": None}
    assert make_table(output).keys() == TABLE.keys()
    for value in (torch.zeros(2, 3, 4), torch.tensor(1.0), [1, 2]):
        message = r"rows must hold text alone, got 'pixel_values' .*; leave images out"
        with pytest.raises(NotImplementedError, match=message):
            make_table({"completion_ids": torch.zeros(2, 2), "pixel_values": value})


def test_masked_rows_are_spread_over_all_micro_batches():
    whole = {"completion_mask": torch.tensor([[0], [0], [1], [1]]), "number": torch.arange(4)}
    chunks = [select(whole, [0, 1]) | {"scale": 1}, select(whole, [2, 3]) | {"scale": 2}]
    found = spread_masked_rows(chunks)
    assert [chunk["number"].tolist() for chunk in found] == [[2, 0], [3, 1]]
    assert [chunk["scale"] for chunk in found] == [1, 2]
