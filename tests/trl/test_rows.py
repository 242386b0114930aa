"""Tables of rows are concatenated, selected and padded without losing or moving a token."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apportion.trl.rows import (
    concatenate,
    loss_mask,
    make_table,
    masked_rows,
    policy_tokens,
    select,
    size,
    split_table,
    spread_masked_rows,
    to_device,
)

PAD = 9


def numbered(rows, prompt, completion, start=0):
    """Return a table with distinct tokens; the completion of row i has i + 1 tokens."""
    count = torch.arange(completion)
    mask = (count.unsqueeze(0) <= torch.arange(rows).unsqueeze(1)).long()
    return {
        "prompt_ids": 100 + start + torch.arange(rows * prompt).view(rows, prompt),
        "prompt_mask": torch.ones(rows, prompt, dtype=torch.long),
        "completion_ids": 500 + start + torch.arange(rows * completion).view(rows, completion),
        "completion_mask": mask,
        "tool_mask": torch.ones(rows, completion, dtype=torch.long),
        "old_per_token_logps": -torch.rand(rows, completion),
        "importance_sampling_ratio": torch.rand(rows, 1),
        "old_logps": -torch.rand(rows),
    }


def tokens(table, key, mask):
    return [ids[own.bool()].tolist() for ids, own in zip(table[key], table[mask], strict=True)]


def test_tables_of_several_widths_keep_their_tokens():
    tables = [numbered(2, 3, 4), numbered(3, 5, 2, start=50)]
    whole = concatenate(tables, PAD)
    assert size(whole) == 5
    for key, mask in (("prompt_ids", "prompt_mask"), ("completion_ids", "completion_mask")):
        assert tokens(whole, key, mask) == [row for table in tables for row in tokens(table, key, mask)]
    assert whole["prompt_ids"][0].tolist()[:2] == [PAD, PAD] and whole["prompt_mask"][0].tolist() == [0, 0, 1, 1, 1]
    assert whole["completion_ids"][2].tolist()[2:] == [PAD, PAD]
    assert whole["tool_mask"][2].tolist() == [1, 1, 1, 1]
    assert whole["old_per_token_logps"][2].tolist()[2:] == [0.0, 0.0]
    assert whole["importance_sampling_ratio"].shape == (5, 1) and whole["old_logps"].shape == (5,)
    assert torch.equal(whole["old_logps"], torch.cat([table["old_logps"] for table in tables]))


def test_one_table_is_returned_unchanged():
    table = numbered(2, 3, 4)
    assert concatenate([table], PAD) is table
    assert select(table, [0, 1]) is table


def test_rows_are_selected_in_the_given_order():
    table = numbered(4, 2, 2)
    some = select(table, [3, 1])
    for key, value in some.items():
        assert torch.equal(value, torch.stack([table[key][3], table[key][1]]))
    assert size(select(table, [])) == 0


def test_masked_rows_have_a_prompt_and_no_token_in_the_loss():
    table = numbered(3, 2, 4)
    extra = masked_rows(table, 2)
    assert size(extra) == 2 and not loss_mask(extra).any()
    assert extra["prompt_mask"].all() and torch.equal(extra["prompt_ids"][1], table["prompt_ids"][0])
    assert loss_mask(table).any()


def test_tools_tokens_are_not_in_the_loss():
    table = numbered(2, 2, 4)
    table["tool_mask"][1, 1] = 0
    assert loss_mask(table).tolist() == [[1, 0, 0, 0], [1, 0, 0, 0]]
    del table["tool_mask"]
    assert loss_mask(table).tolist() == [[1, 0, 0, 0], [1, 1, 0, 0]]


def test_policy_tokens_exclude_those_of_tools():
    completions = [[5, 6, 7], [5, 6]]
    assert policy_tokens({}, completions) == [3, 2]
    assert policy_tokens({"tool_mask": torch.tensor([[1, 0, 1], [1, 1, 1]])}, completions) == [2, 2]
    # a truncated completion may be masked as a whole, but the policy wrote it
    assert policy_tokens({"tool_mask": torch.tensor([[0, 0, 0], [1, 1, 1]])}, completions) == [3, 2]


def test_a_table_is_trl_s_output_without_the_keys_of_the_batch():
    table = numbered(2, 2, 2)
    output = table | {"advantages": torch.zeros(2), "num_items_in_batch": torch.tensor(3), "ref_per_token_logps": None}
    assert make_table(output).keys() == table.keys()


@pytest.mark.parametrize("value", [torch.zeros(2, 3, 4), torch.tensor(1.0), [1, 2]])
def test_values_that_are_not_one_per_row_are_refused(value):
    with pytest.raises(
        NotImplementedError, match=r"rows must hold text alone, got 'pixel_values' .*; leave images out"
    ):
        make_table({"completion_ids": torch.zeros(2, 2), "pixel_values": value})


def test_a_table_moves_as_a_whole():
    assert {value.device.type for value in to_device(numbered(2, 2, 2), "cpu").values()} == {"cpu"}


def test_ratios_are_padded_as_trl_pads_them():
    """The padding is 1, because TRL sums logarithms over whole rows."""
    tables = [
        {"completion_ids": torch.ones(1, width).long(), "importance_sampling_ratio": torch.full((1, width), 0.5)}
        for width in (2, 4)
    ]
    assert concatenate(tables, pad_token=0)["importance_sampling_ratio"].tolist() == [[0.5, 0.5, 1.0, 1.0], [0.5] * 4]


def test_split_rows_have_no_padding_and_concatenate_to_the_same_table():
    table = {
        "prompt_ids": torch.tensor([[9, 9, 5], [6, 7, 8], [9, 5, 6]]),
        "prompt_mask": torch.tensor([[0, 0, 1], [1, 1, 1], [0, 1, 1]]),
        "completion_ids": torch.tensor([[1, 2, 9, 9], [3, 4, 5, 6], [7, 9, 9, 9]]),
        "completion_mask": torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]),
        "old_per_token_logps": torch.tensor([[-1.0, -2.0, 0.0, 0.0], [-3.0] * 4, [-4.0, 0.0, 0.0, 0.0]]),
        "importance_sampling_ratio": torch.tensor([[0.5], [0.6], [0.7]]),
        "old_logps": torch.tensor([-3.0, -12.0, -4.0]),
    }
    rows = split_table(table)
    assert [(row["prompt_ids"].size(1), row["completion_ids"].size(1)) for row in rows] == [(1, 2), (3, 4), (2, 1)]
    assert all(row["completion_ids"].untyped_storage().size() <= 8 * 4 for row in rows)
    again = concatenate(rows, pad_token=9)
    assert again.keys() == table.keys()
    assert all(torch.equal(again[key], table[key]) for key in table)


@given(
    true=st.lists(st.booleans(), min_size=12, max_size=12),
    chunks=st.sampled_from([1, 2, 3, 4, 6]),
)
def test_masked_rows_are_spread_evenly_and_every_row_occurs_once(true, chunks):
    mask = torch.tensor(true, dtype=torch.long)[:, None].expand(12, 2)
    whole = {
        "completion_ids": mask,
        "completion_mask": mask,
        "number": torch.arange(12),
        "num_items_in_batch": torch.tensor(5),
    }
    each = 12 // chunks
    before = [
        {key: value[i * each : (i + 1) * each] if value.ndim else value for key, value in whole.items()}
        for i in range(chunks)
    ]
    after = spread_masked_rows(before)
    full = [int(chunk["completion_mask"].any(dim=1).sum()) for chunk in after]
    assert max(full) - min(full) <= 1 and sum(full) == sum(true)
    assert sorted(torch.cat([chunk["number"] for chunk in after]).tolist()) == list(range(12))
    assert all(len(chunk["number"]) == each and chunk["num_items_in_batch"] == 5 for chunk in after)
    for chunk in after:
        assert [true[number] for number in chunk["number"]] == chunk["completion_mask"].any(dim=1).tolist()
