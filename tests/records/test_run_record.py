"""A run in memory: the columns agree with each other and with the log that they were read from."""

from dataclasses import replace

import numpy as np
import pytest

from apportion import Uniform
from apportion.diagnosis.waste import waste_of
from apportion.records import LoggedStep, RecordError, open_run, start_log, write_step, write_steps
from apportion.records.importing import import_run
from apportion.records.reading import record_of_log, record_of_visits
from apportion.records.step_summary import summaries
from tests.builders import make_batch
from tests.cases import check_refused


@pytest.fixture
def record():
    return record_of_visits([[0, 8], [4], [8, 2, 1]], 8, ["a", "b", "c"])


def test_group_counts_become_groups_in_the_order_of_the_visits(record):
    assert record.step.tolist() == [0, 0, 0, 1, 1, 2]
    assert record.prompt.tolist() == [0, 1, 2, 0, 2, 2]
    assert record.totals.tolist() == [0, 4, 8, 8, 2, 1]
    assert record.shares.tolist() == [0, 0.5, 1, 1, 0.25, 0.125]
    assert record.variances.tolist() == [0, 0.25, 0, 0, 0.1875, 0.109375]
    assert record.visit.tolist() == [0, 0, 0, 1, 1, 2]
    assert record.binary and record.visits and not record.ordered


def test_rewards_that_differ_by_rounding_are_a_dead_group(record):
    found = replace(record.of_groups([0, 1, 3]), reward=np.r_[[0.1 + 0.2, 0.3] * 4, [0.3] * 8, [0.3] * 7, 0.301])
    assert found.dead.tolist() == [True, True, False] == (~found.mixed).tolist()
    assert waste_of(found).whole.groups == (1, 0, 0, 2, 0, 0)
    assert [step.mixed for step in summaries(found)] == [0, 1]


def test_rewards_whose_sum_is_that_of_right_or_wrong_ones_are_mixed(record):
    (found,) = summaries(replace(record.of_groups([0, 1]), reward=np.r_[[-1.0, 1.0] * 4, [0.5, 1.5] * 4]))
    assert (found.all_right, found.all_wrong, found.mixed) == (0, 0, 1)


def test_a_part_of_a_record_has_the_rollouts_of_its_groups(record):
    part = record.of_groups(record.trials - record.totals == 4)
    assert part.step.tolist() == [0] and part.totals.tolist() == [4] and len(part.reward) == 8
    assert record.of_groups(np.array([1, 5])).totals.tolist() == [4, 1]


def test_a_count_above_the_size_of_a_group_is_refused():
    with pytest.raises(ValueError, match="correct must be 0 to 8"):
        record_of_visits([[9]], 8, ["a"])


@pytest.mark.parametrize("steps", [[1], [1, 2]])
def test_a_log_is_opened_whatever_its_files_hold_and_by_the_folder_of_its_run(tmp_path, steps):
    batch, log = make_batch([[1, 0]]), tmp_path / "hard" / "rollouts"
    start_log(log)
    write_steps(log, [LoggedStep(step, batch, Uniform(2).groups(batch)) for step in steps])
    for path in (log, log.parent):
        found = open_run(path)
        assert (found.name, found.source, found.doubts, found.step.tolist()) == ("hard", "rollout log", (), steps)
        assert np.isnan(found.predicted).all()  # a belief of 0.5 about every prompt is no prediction
    for path in (log, next(log.glob("*.parquet"))):
        with pytest.raises(RecordError, match=f"needs no import; open the folder {log}"):
            import_run([path])


@pytest.mark.parametrize(
    ("advantages", "said"),
    [
        ([0, 0, 1, 1, 2, -2], "1 of 2 dead groups trained with advantages other than 0"),
        ([0, 0, 0, 0, 2, -2], None),
        (None, None),
    ],
)
def test_a_dead_group_that_trained_is_told(tmp_path, advantages, said):
    batch = make_batch([[0, 0], [1, 1], [1, 0]])
    write_step(tmp_path, 0, batch, Uniform(2).groups(batch), advantages)
    found = record_of_log(tmp_path)
    assert [doubt.partition(",")[0] for doubt in found.doubts] == [said] * (said is not None)
    assert found.dead.tolist() == [True, True, False]
    assert said is None or found.doubts[0].endswith("without them 33% of the groups would be")


def test_columns_that_do_not_fit_are_refused(record):
    wrong = [
        ("step", record.step[::-1], "step must never fall"),
        ("tokens", np.zeros(2), "tokens must have 48 values, got 2"),
        ("first", record.first + 1, "first must rise from 0 to the 48 rollouts"),
    ]
    check_refused(ValueError, lambda name, values: replace(record, **{name: values}), wrong)
