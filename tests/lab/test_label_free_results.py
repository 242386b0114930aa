import json
from dataclasses import asdict

import numpy as np
import pytest

from apportion.lab.label_free_results import SCORES, LabelFreeRun, summarise_label_free
from apportion.lab.results import Interval

LABELS = [(4, 2, 1), (1, 1, 0), (0, 0, 0)]
"""Labels that gold is known for, right ones and false consensus of each step."""


def write_run(directory, rollouts=30, mean_16=(0.25, 0.5), gold=True, labels=LABELS):
    """A finished run of three steps, the last of which trained on nothing."""
    directory.mkdir(parents=True)

    def evaluated(end):
        scores = dict.fromkeys(SCORES, 0.75) | {"mean_16": mean_16[end]} if gold else {"prompts_success": 0.9}
        return {"success": (0.25, 0.375)[end], "drift": 0.5 * end, **scores}

    lines = [{"step": 0, "rollouts": 0, "tokens": 0, **evaluated(0)}]
    for step, (made, right, false) in enumerate(labels, start=1):
        lines.append(
            {
                "step": step,
                "rollouts": rollouts * step // 3,
                "tokens": 7 * rollouts * step // 3,
                "labels": made if gold else 0,
                "labels_right": right if gold else 0,
                "false_consensus": false if gold else 0,
                "allocator": {"tied": 0.25, "unanswered": 0.25 * (step == 1), "leader_share": 0.5},
                "rows": 8.0 if step < 3 else 0.0,
                "counts": [4, 6],
                "cpu_seconds": 1.5,
                **(evaluated(1) if step == len(labels) else {}),
            }
        )
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return LabelFreeRun.read(directory)


def study_of(folder, rollouts=(20, 18), mean_16=(0.5, 0.45), **settings):
    """Three seeds of a baseline with 30 rollouts, and of another arm; both share the noise of their seed."""
    runs = {"ttrl": [], "optpo": []}
    for seed, noise in enumerate([0.0, 0.02, -0.01]):
        base = write_run(folder / f"t{seed}", 30, (0.25, 0.5 + noise), **settings)
        runs["ttrl"].append(base)
        mine = (0.25, mean_16[0] + noise) if seed else (0.25, mean_16[1] + noise)
        runs["optpo"].append(write_run(folder / f"o{seed}", rollouts[seed % 2], mine, **settings))
    return runs


def test_shares_of_labels_are_over_the_whole_run_and_not_means_over_its_steps(tmp_path):
    run = write_run(tmp_path / "a")
    assert run.has_gold
    assert run.per_label("labels_right") == pytest.approx(3 / 5)
    assert run.per_label("false_consensus") == pytest.approx(1 / 5)
    assert run.steps["unlabelled"].tolist() == [0.5, 0.25, 0.25]
    assert (run.final("mean_16"), run.gain("mean_16"), run.final("drift")) == (0.5, 0.25, 0.5)
    assert (run.updates, run.cpu_seconds) == (2, 4.5)


def test_a_run_that_made_no_label_has_no_accuracy_of_labels(tmp_path):
    assert np.isnan(write_run(tmp_path / "a", labels=[(0, 0, 0)] * 3).per_label("labels_right"))


def test_savings_and_differences_are_paired_by_seed(tmp_path):
    runs = study_of(tmp_path)
    baseline, arm = summarise_label_free(runs, "ttrl")
    saved = [1 - 20 / 30, 1 - 18 / 30, 1 - 20 / 30]
    assert arm.rollouts_saved == Interval.of(saved)
    assert arm.tokens_saved.mean == pytest.approx(np.mean(saved))
    assert arm.mean_16_difference.mean == pytest.approx(-0.05 / 3)
    assert arm.mean_16_difference.half_width == pytest.approx(Interval.of([-0.05, 0, 0]).half_width)
    assert (baseline.rollouts, baseline.tokens, baseline.updates) == (30, 210, 2)
    assert baseline.rollouts_saved == Interval(0.0, 0.0)
    assert baseline.mean_16_gain.mean == pytest.approx(0.25 + 0.01 / 3)
    assert baseline.start["mean_16"].mean == 0.25 and baseline.scores["pass_16"].mean == 0.75
    assert (baseline.held_out_start.mean, baseline.held_out.mean) == (0.25, 0.375)


def test_without_gold_there_are_votes_drift_and_costs_alone(tmp_path):
    arms = summarise_label_free(study_of(tmp_path, gold=False), "ttrl")
    for arm in arms:
        assert arm.scores == arm.start == {}
        assert arm.mean_16_difference is arm.mean_16_gain is arm.label_accuracy is arm.false_consensus is None
        assert arm.unlabelled.mean == pytest.approx(1 / 3) and arm.leader_share.mean == 0.5
        assert arm.drift.mean == 0.5
    assert arms[1].rollouts_saved.mean > 0.3


def test_a_seed_without_any_label_is_left_out_of_the_shares_of_labels(tmp_path):
    """Else one nan would take the place of all seeds, and make a ``summary.json`` that is no JSON."""
    mute = [(0, 0, 0)] * 3
    runs = {arm: [write_run(tmp_path / arm / str(seed), labels=mute) for seed in range(2)] for arm in ("ttrl", "optpo")}
    runs["ttrl"][0] = write_run(tmp_path / "voted")
    ttrl, optpo = summarise_label_free(runs, "ttrl")
    assert (ttrl.label_accuracy.mean, ttrl.label_accuracy.half_width) == (pytest.approx(0.6), None)
    assert optpo.label_accuracy is optpo.false_consensus is None
    json.dumps([asdict(arm) for arm in (ttrl, optpo)], allow_nan=False)
