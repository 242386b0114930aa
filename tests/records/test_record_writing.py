"""A run in memory as a rollout log: read back, it is the same run."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest

from apportion import HORA
from apportion.predictors import UniformPrior
from apportion.records import (
    RecordError,
    RunRecord,
    follow,
    open_run,
    read_log,
    read_streams,
    record_of_log,
    record_of_visits,
    scalars_at,
    write_record,
)
from tests.records.test_rollout_log import logged

pytest.importorskip("pyarrow")


def make_record(seed=0, groups=40, graded=False, **given):
    """Return a run in which every kind of value is missing now and then. Prompts are numbered by first visit."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(5, size=groups)
    rollouts = sizes.sum()
    some = lambda values: np.where(rng.random(len(values)) < 0.2, np.nan, values)  # noqa: E731
    _, first, prompt = np.unique(rng.integers(9, size=groups), return_index=True, return_inverse=True)
    number = len(first)
    columns = {
        "name": "a run",
        "source": "somewhere",
        "ids": [f"id {q}" for q in range(number)],
        "texts": [None if q % 3 == 0 else f"\u00fc {q}" for q in range(number)],
        "step": np.sort(rng.integers(6, size=groups)) * 3,
        "prompt": first.argsort().argsort()[prompt],
        "asked": sizes + rng.integers(3, size=groups),
        "predicted": some(rng.random(groups)),
        "written": some(1.7e9 + np.arange(groups)),
        "first": np.r_[0, np.cumsum(sizes)],
        "reward": some(rng.random(rollouts) if graded else rng.integers(2, size=rollouts).astype(float)),
        "tokens": some(rng.integers(1000, size=rollouts).astype(float)),
        "score_norm": some(rng.random(rollouts)),
        "truncated": some(rng.integers(2, size=rollouts).astype(float)),
        "answer": rng.integers(-1, 4, size=rollouts),
        "kept": rng.random(rollouts) < 0.7,
    }
    return RunRecord(**columns | given)


def assert_same(found, record):
    for field in fields(RunRecord):
        one, other = getattr(found, field.name), getattr(record, field.name)
        if field.name == "answer":  # numbered anew
            pairs = set(zip(one.tolist(), other.tolist(), strict=True))
            assert len(pairs) == len(set(one.tolist())) == len(set(other.tolist()))
            assert all((a == -1) == (b == -1) for a, b in pairs)
        else:
            np.testing.assert_array_equal(one, other, err_msg=field.name)
            assert getattr(one, "dtype", None) == getattr(other, "dtype", None), field.name


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("flags", [{}, {"ordered": False, "visits": True}])
def test_a_record_that_is_written_is_read_as_it_was(tmp_path, graded, flags):
    for seed in range(5):
        record = make_record(seed, graded=graded, **flags)
        write_record(record, tmp_path / str(seed))
        assert_same(record_of_log(tmp_path / str(seed)), record)


def test_paths_may_be_texts(tmp_path):
    folder, record = str(tmp_path / "log"), make_record(0)
    write_record(record, folder)
    for read in (open_run, record_of_log, lambda path: next(follow(path, timeout_seconds=0)).records[0]):
        assert read(folder).ids[:1] == record.ids[:1]
    assert scalars_at(folder) is None and len(read_log(folder))


def test_a_record_of_a_log_is_written_as_that_log(tmp_path):
    (tmp_path / "one").mkdir()
    rule = HORA(pre_rollouts=2, rollouts_per_prompt=4, predictor=UniformPrior(alpha=1.0, beta=3.0))
    logged(tmp_path / "one", rule, failing=0.3)
    record = record_of_log(tmp_path / "one")
    assert not np.isnan(record.written).any() and (np.diff(record.written) >= 0).all()
    write_record(record, tmp_path / "other")
    assert_same(record_of_log(tmp_path / "other"), record)
    one, other = (read_log(tmp_path / name) for name in ("one", "other"))
    for name in ("place", "index", "correct"):
        assert one[name].to_pylist() == other[name].to_pylist(), name
    assert read_streams(tmp_path / "other").keys() == read_streams(tmp_path / "one").keys()


def test_group_counts_become_a_log_without_an_order(tmp_path):
    record = record_of_visits([[0, 8], [4], [8, 2, 1]], 8, ["a", "b", "c"], name="counts")
    write_record(record, tmp_path)
    assert_same(record_of_log(tmp_path), record)
    assert read_log(tmp_path)["correct"].null_count == 0


def test_a_log_of_a_record_is_of_one_run(tmp_path):
    write_record(make_record(), tmp_path)
    with pytest.raises(RecordError, match=r"without steps, got .* with 6 of another run"):
        write_record(make_record(1), tmp_path)
    with pytest.raises(RecordError, match="got a run without groups"):
        write_record(make_record().of_groups(np.zeros(0, int)), tmp_path / "empty")
    assert not (tmp_path / "empty").exists()


def test_what_a_log_cannot_hold_is_refused(tmp_path):
    record = make_record()
    with pytest.raises(ValueError, match=r"tokens must be whole numbers, got 1\.5"):
        write_record(replace(record, tokens=np.full(len(record.tokens), 1.5)), tmp_path)
    with pytest.raises(ValueError, match="at least 0, got -3"):
        write_record(replace(record, step=record.step - 3), tmp_path)
    assert not [*tmp_path.iterdir()]


def test_a_log_of_a_record_without_some_of_its_steps_is_refused(tmp_path):
    write_record(make_record(), tmp_path)
    (tmp_path / "step-000003.parquet").unlink()
    with pytest.raises(RecordError, match=r"must have 6 steps with \d+ rollouts, got 5 with \d+; import the run again"):
        record_of_log(tmp_path)


def test_a_damaged_description_of_a_run_is_refused(tmp_path):
    write_record(make_record(), tmp_path)
    path = tmp_path / "run.json"
    whole = json.loads(path.read_text())
    for content in ("", "{", "[]", "{}", json.dumps(whole | {"more": 1}), json.dumps(whole | {"steps": True}), "\0"):
        path.write_text(content)
        with pytest.raises(RecordError, match=r"run\.json must .*; import the run again"):
            record_of_log(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(RecordError, match="got a folder"):
        record_of_log(tmp_path)
