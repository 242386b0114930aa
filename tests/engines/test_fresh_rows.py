"""Fresh rows of both kinds of data sets are seeded, endless, and the same after a restart."""

from itertools import cycle, islice

import pytest
from datasets import Dataset, IterableDataset

from apportion import DAPO, Uniform
from apportion.engines.fresh_rows import FreshRows, draw_distinct
from apportion.scheduler.decisions import check_draws

SIZE = 10
ROWS = Dataset.from_list([{"prompt": f"question {i}"} for i in range(SIZE)])
KINDS = {"map-style": lambda: ROWS, "iterable": lambda: ROWS.to_iterable_dataset(num_shards=2)}


@pytest.fixture(params=KINDS)
def dataset(request):
    return KINDS[request.param]()


def taken(fresh, count):
    return [row["prompt"] for row in islice(fresh.rows(), count)]


def test_an_epoch_holds_every_row_once_in_an_order_of_its_own_and_of_the_seed(dataset):
    fresh = FreshRows(dataset, seed=3)
    epochs = [taken(fresh, SIZE) for _ in range(3)]
    assert all(sorted(epoch) == sorted(ROWS["prompt"]) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] and fresh.drawn == 3 * SIZE
    assert taken(FreshRows(dataset, 4), SIZE) != epochs[0]
    other = FreshRows(dataset, 3)  # a restored stream continues at its position
    for drawn in (13, 0):
        other.restore(drawn)
        assert taken(other, 17) == [row for epoch in epochs for row in epoch][drawn : drawn + 17]


def test_without_a_seed_rows_come_in_the_order_of_the_data_in_every_epoch(dataset):
    fresh = FreshRows(dataset, None)
    assert taken(fresh, 13) == [*ROWS["prompt"], *ROWS["prompt"][:3]]
    fresh.restore(8)
    assert taken(fresh, 4) == [*ROWS["prompt"][8:], *ROWS["prompt"][:2]]


def test_skipped_rows_count_as_drawn(dataset):
    """Otherwise a restored run would draw other rows."""
    fresh, plain = FreshRows(dataset, 0), FreshRows(dataset, 0)
    order = taken(plain, SIZE)
    (row,) = draw_distinct(fresh, 1, set(order[:3]), lambda row: row["prompt"])
    assert row["prompt"] == order[3] and fresh.drawn == 4


def test_a_data_set_with_too_few_prompts_is_refused(dataset):
    with pytest.raises(
        ValueError,
        match=r"the data set must have 7 more prompts than the 4 of this batch, got 6; add some, let the",
    ):
        draw_distinct(FreshRows(dataset, 0), 7, {f"question {i}" for i in range(4)}, lambda row: row["prompt"])


def test_rare_prompts_among_repeated_rows_are_found():
    """Some data sets hold each prompt a hundred times."""
    rows = Dataset.from_list([{"prompt": "often"}] * 30 + [{"prompt": "seldom"}])
    for dataset in (rows, rows.to_iterable_dataset()):
        found = draw_distinct(FreshRows(dataset, 0), 2, (), lambda row: row["prompt"])
        assert {row["prompt"] for row in found} == {"often", "seldom"}


def test_a_stream_without_end_of_a_few_prompts_is_refused_in_time():
    """It has no epoch that ends, so the rows that are read are bounded."""
    fresh = FreshRows(IterableDataset.from_generator(lambda: cycle([{"prompt": "one"}, {"prompt": "two"}])), 0)
    assert len(draw_distinct(fresh, 2, (), lambda row: row["prompt"])) == 2
    for count in (1, 40):
        message = rf"must have {count} more prompts than the 2 of this batch, got 0; add some"
        with pytest.raises(ValueError, match=message):
            draw_distinct(fresh, count, {"one", "two"}, lambda row: row["prompt"])


def test_a_stream_whose_filter_leaves_nothing_is_refused():
    rows = Dataset.from_list([{"prompt": "a"}]).to_iterable_dataset().filter(lambda row: False)
    with pytest.raises(ValueError, match="a stream of prompts must have rows, got none in a whole epoch; check its"):
        draw_distinct(FreshRows(rows, 0), 1, (), lambda row: row["prompt"])


def test_draws_that_would_run_out_are_refused_before_the_first_step():
    """For every engine. Rules that draw nothing read no data."""
    asked = []

    def distinct(most):
        asked.append(most)
        return min(16, most)

    check_draws(Uniform(), 16, distinct)
    assert asked == []
    check_draws(DAPO(max_draws=4), 4, distinct)
    with pytest.raises(ValueError, match=r"must have 20 distinct prompts, the 4 of a .* and the 16 that dapo"):
        check_draws(DAPO(max_draws=5), 4, distinct)
    assert asked == [16, 20]
