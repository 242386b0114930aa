"""The numbers of a run: totals, dead groups, difficulty and calibration agree with what the rollouts say."""

import re

import numpy as np
import pytest

from apportion.records import open_run
from apportion.records.reading import record_of_visits
from apportion.report.calibration import calibrate
from apportion.report.curves import mean_curve, plain_curve
from apportion.report.profile import BANDS, profile_of, stretches_of
from apportion.report.study import study_profiles
from tests.diagnosis.builders import record_of
from tests.report.builders import make_record, write_run
from tests.test_house import ROOT

NAN = np.nan


def test_dead_groups_are_those_whose_rewards_are_equal():
    record = make_record(steps=3)
    groups = record.reward.reshape(3, 16, 8)
    found = profile_of(record, "a")
    right, wrong = groups.all(axis=2), ~groups.any(axis=2)
    assert found.dead["all right"].y == pytest.approx(right.mean(axis=1))
    assert found.dead["all wrong"].y == pytest.approx(wrong.mean(axis=1))
    assert found.dead.keys() == found.totals.dead_kinds.keys() - {"all equal"}
    assert found.totals.dead_kinds["all right"] == pytest.approx(right.mean())
    assert found.totals.dead.value == pytest.approx((right | wrong).mean())


def test_graded_and_missing_rewards_are_told_apart():
    rewards = {"first": np.array([0, 2, 4, 7, 9, 9]), "reward": np.array([0.3, 0.3, NAN, 1.0, 1.0, NAN, NAN, 0.1, 0.2])}
    profile = profile_of(record_of(np.ones((5, 2)), **rewards), "graded")
    assert profile.totals.dead_kinds == {"all right": 0, "all wrong": 0, "all equal": 2 / 9}  # no single reward is dead
    assert profile.dead["all equal"].y.tolist() == [1 / 2] and profile.dead.keys() == {"all equal"}
    assert profile.bands is None and profile.calibration is None and profile.totals.tokens is None
    assert profile.by_size is None


def test_totals_are_those_of_the_recorded_run():
    profile = profile_of(open_run(ROOT / "examples" / "data" / "grpo_run.jsonl.gz"), "grpo")
    totals = profile.totals
    assert (totals.rollouts, totals.prompts) == (512_000, 1_209)
    assert sum(totals.dead_kinds.values()) == pytest.approx(totals.dead.value) == pytest.approx(0.49, abs=0.005)
    assert profile.bands.sum(axis=1) == pytest.approx(1)
    assert profile.places["rollouts"][-1] == totals.rollouts
    assert profile.calibration is None  # no prediction was recorded
    assert profile.by_size.x[""].tolist() == [2, 4, 8, 16, 32]
    assert profile.by_size.y.round(2).tolist() == [0.77, 0.59, 0.44, 0.33, 0.25]  # as the forecast says


def test_costs_rise_to_the_totals():
    record = make_record()
    profile = profile_of(record, "a")
    assert profile.places["tokens"][-1] == profile.totals.tokens == record.tokens.sum()
    assert profile.places["hours"][-1] == profile.totals.hours == pytest.approx(39 * 30 / 3600)
    for places in profile.places.values():
        assert (np.diff(places) >= 0).all()


@pytest.mark.parametrize("column", ["tokens", "written"])
def test_a_cost_that_is_partly_unknown_is_not_drawn(column):
    record = make_record()
    values = getattr(record, column).copy()
    values[5] = np.nan
    profile = profile_of(make_record(**{column: values}), "a")
    assert {"tokens": "tokens", "written": "hours"}[column] not in profile.success.x


def test_success_is_the_mean_over_the_groups_of_each_stretch():
    record = make_record(steps=3, prompts=4)
    curve = profile_of(record, "a").success
    assert curve.y == pytest.approx(record.shares.reshape(3, 4).mean(axis=1))
    assert ((curve.low <= curve.y) & (curve.y <= curve.high)).all()


def test_difficulty_is_the_success_at_the_visits_around():
    record = record_of_visits([[0, 0, 8, 8, 8]], 8, ["a"])
    bands = profile_of(record, "a").bands
    around = [8 / 24, 16 / 32, 24 / 40, 24 / 32, 1.0]
    expected = np.clip(np.searchsorted(BANDS, around, side="right") - 1, 0, 5)
    assert bands.argmax(axis=1).tolist() == expected.tolist()


def test_stretches_have_about_equal_numbers_of_groups():
    sizes = np.r_[np.full(50, 1000), np.ones(50, int)]
    stretch = stretches_of(sizes)
    assert stretch.tolist() == sorted(stretch.tolist()) and np.bincount(stretch, sizes).min() >= 800
    assert stretches_of(np.ones(0, int)).tolist() == []


def test_calibration_has_the_right_means_and_its_interval_covers():
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(60):
        p = rng.random(4000)
        own = np.repeat(np.clip(p[:400] + rng.normal(0, 0.15, 400), 0, 1), 10)  # ten groups of each prompt
        predicted = np.repeat(p[:400], 10)
        right = rng.binomial(8, own)
        found = calibrate(predicted, right.astype(float), np.full(4000, 8), np.repeat(np.arange(400), 10))
        tenth = np.clip((predicted * 10).astype(int), 0, 9)
        truth = np.array([predicted[tenth == k].mean() for k in range(10)])
        covered.append(((found.curve.low <= truth) & (truth <= found.curve.high))[1:9])  # clipping biases the ends
        assert found.curve.y == pytest.approx([right[tenth == k].mean() / 8 for k in range(10)])
    assert 0.9 <= np.mean(covered) <= 0.99


def test_without_predictions_there_is_no_calibration(tmp_path):
    assert calibrate(np.full(3, np.nan), np.ones(3), np.ones(3, int), np.arange(3)) is None
    write_run(tmp_path / "uniform-seed0", 3)
    assert study_profiles(tmp_path)[0].calibration is not None
    metrics = tmp_path / "uniform-seed0" / "metrics.jsonl"
    metrics.write_text(re.sub(r'"predicted": \[.*?\]', f'"predicted": {[0.5] * 8}', metrics.read_text()))
    assert study_profiles(tmp_path)[0].calibration is None  # a belief of 0.5 about every prompt


def test_means_over_seeds_are_at_equal_rollouts_that_all_reached_and_stay_shares():
    curves = [plain_curve({"rollouts": np.array([0.0, n])}, np.array([0.1, y])) for n, y in ((100, 0.9), (200, 0.7))]
    mean = mean_curve(curves)
    assert mean.x["rollouts"][-1] == 100 and mean.y[-1] == pytest.approx((0.9 + 0.4) / 2)
    assert mean.high.max() == 1 and mean.low.min() == 0
