"""The prompts of a data set: their ids, rows that differ from a namesake, and the memory that reading takes."""

import tracemalloc

import numpy as np
import pytest
from datasets import Dataset

from apportion.engines.dataset_prompts import read_prompts
from apportion.engines.prompts import prompt_of

ROWS = [
    {"prompt": "a", "answer": "1", "number": 0, "rate": 0.25},
    {"prompt": "b", "answer": "2", "number": 1, "rate": None},
    {"prompt": "a", "answer": "1", "number": 0, "rate": 0.25},
    {"prompt": "a", "answer": "3", "number": 4, "rate": 0.5},
    {"prompt": "", "answer": "4", "number": 5, "rate": None},
    {"prompt": "", "answer": "5", "number": 6, "rate": None},
]


class Listed:
    """A data set of torch: a length, and rows by index."""

    def __len__(self):
        return len(ROWS)

    def __getitem__(self, place):
        if place >= len(ROWS):
            raise IndexError(place)
        return ROWS[place]


def in_format(name):
    return Dataset.from_list(ROWS).with_format(name)


SETS = {
    "data set": lambda: Dataset.from_list(ROWS),
    "numpy": lambda: in_format("numpy"),
    "torch": lambda: in_format("torch"),
    "shuffled back": lambda: Dataset.from_list(ROWS[::-1]).select(range(len(ROWS) - 1, -1, -1)),
    "list": lambda: ROWS,
    "of torch": Listed,
}


@pytest.mark.parametrize("name", SETS)
def test_prompts_are_those_of_the_rows_in_order(name):
    dataset = SETS[name]()
    found = read_prompts(dataset)
    assert list(found.every) == [prompt_of(dataset[i]) for i in range(len(ROWS))]
    assert [prompt.text for prompt in found.distinct[:2]] == ["a", "b"] and len(found.distinct) == 4
    assert found.differing == 1


@pytest.mark.parametrize("name", ["data set", "list", "of torch"])
def test_ids_and_rates_come_from_their_columns(name):
    found = read_prompts(SETS[name](), "number", "rate")
    assert [prompt.id for prompt in found.every] == ["0", "1", "0", "4", "5", "6"]
    assert [prompt.rate for prompt in found.every] == [0.25, None, 0.25, 0.5, None, None]
    assert found.differing == 0


def test_a_transform_sees_all_columns_of_a_row():
    dataset = Dataset.from_list([{"question": "6 x 7?", "answer": "42"}])
    dataset.set_transform(lambda rows: {"prompt": [f"{q} Not {a}." for q, a in zip(*rows.values(), strict=True)]})
    assert [prompt.text for prompt in read_prompts(dataset).every] == ["6 x 7? Not 42."]


def test_each_row_that_differs_from_the_first_of_its_id_is_counted():
    rows = [{"prompt": "a", "tests": np.array([1, 2, i % 3])} for i in range(9)]
    assert read_prompts(rows).differing == 6
    assert read_prompts([{"prompt": "a", "value": float("nan")}] * 3).differing == 0


def test_reading_100_000_prompts_does_not_hold_all_rows_in_memory():
    """100,000 rows as large as usual would hide it in a long test: fewer rows, each with a large column."""
    rows, bytes_of_a_row = 2000, 20_000
    dataset = Dataset.from_dict(
        {
            "prompt": [f"question {i % (rows // 2)}" for i in range(rows)],  # each twice, so that rows are compared
            "tests": [f"{i}" + "x" * bytes_of_a_row for i in range(rows)],
        }
    )
    tracemalloc.start()
    found = read_prompts(dataset)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.differing == rows // 2
    assert peak < rows * bytes_of_a_row / 4
