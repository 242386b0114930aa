"""Tests of the runs with shaped rewards: what is measured, what a gate leaves, and which runs are not repeated."""

import numpy as np
import pytest

from benchmarks import shaped_rewards
from benchmarks.shaped_rewards import COLUMNS, accuracy_of, arms, main, read_runs


@pytest.fixture
def small(small_base_folder, tmp_path, monkeypatch):
    """Make runs of three updates from the small base, of one seed and one weight, with their data in ``tmp_path``."""
    few = {"base": small_base_folder, "steps": 3, "held_out": 8, "evaluate_every": 2}
    monkeypatch.setattr(shaped_rewards, "TRAINING", shaped_rewards.TRAINING | few)
    monkeypatch.setattr(shaped_rewards, "SEEDS", (3,))
    monkeypatch.setattr(shaped_rewards, "LENGTHS", (-0.3,))
    monkeypatch.setattr(shaped_rewards, "DATA", tmp_path / "runs.npz")
    return tmp_path


def test_phantoms_train_unless_the_outcome_gates_them_and_stored_runs_stay(small, monkeypatch, capsys):
    main(minutes=10, results=small)
    found = read_runs()
    assert {name for name, _ in found} == {*arms()} and len(found) == 7
    table = (small / "shaped_rewards.md").read_text()
    assert "of 1 ungated runs with a length term died" in table and "seeds 3" in table
    columns = {name: dict(zip(COLUMNS, run[1:].T, strict=True)) for (name, _), run in found.items()}
    plain, ungated, gated, *_ = columns.values()
    phantoms = ungated["phantom_groups"] > 0
    assert phantoms.any() and (ungated["phantom_share"][phantoms] > 0).all()
    assert (gated["phantom_groups"] > 0).any() and not gated["phantom_share"].any()
    assert not plain["phantom_groups"].any() and (plain["reward"] == plain["outcome"]).all()
    # The first updates see the same rollouts, of which some are worth less.
    assert ungated["outcome"][0] == gated["outcome"][0] == plain["outcome"][0] > ungated["reward"][0]
    for run in found.values():
        assert len(run) == 4 and len(accuracy_of(run)) == 3
    monkeypatch.setattr(shaped_rewards, "train", None)
    main(minutes=10, results=small)
    np.testing.assert_array_equal(read_runs()["no shaping", 3], found["no shaping", 3])


def test_no_run_begins_after_its_time(small, monkeypatch):
    monkeypatch.setattr(shaped_rewards, "train", None)
    runs = {}
    shaped_rewards.train_missing(runs, minutes=-1)
    assert runs == {}
