import json
from dataclasses import asdict

import numpy as np
import pytest

from apportion.lab.report.measures import summarise
from apportion.lab.report.picture import draw
from apportion.lab.report.results import Run, SeedInterval
from apportion.lab.report.without_labels import MEASURES, SCORES, accuracy_table, findings, panels, verdict, vote_table
from tests.builders import write_jsonl

LABELS = [(4, 2, 1), (1, 1, 0), (0, 0, 0)]
"""The number of labels with known gold, right labels and false consensus of each step."""


def write_run(directory, rollouts=30, mean_16=(0.25, 0.5), gold=True, labels=LABELS):
    """Write and read a finished run of three steps. The last step trained on nothing."""
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
    write_jsonl(directory / "metrics.jsonl", lines)
    return Run.read(directory)


def study_of(folder, rollouts=(20, 18), mean_16=(0.5, 0.45), **settings):
    """Return three seeds of a baseline with 30 rollouts and of another arm. Both share the noise of their seed."""
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


def test_savings_and_differences_are_paired_by_seed(tmp_path):
    runs = study_of(tmp_path)
    baseline, arm = summarise(MEASURES, runs, "ttrl")
    saved = [1 - 20 / 30, 1 - 18 / 30, 1 - 20 / 30]
    assert arm.rollouts_saved == SeedInterval.of(saved)
    assert arm.tokens_saved.mean == pytest.approx(np.mean(saved))
    assert arm.mean_16_difference.mean == pytest.approx(-0.05 / 3)
    assert arm.mean_16_difference.half_width == pytest.approx(SeedInterval.of([-0.05, 0, 0]).half_width)
    assert (baseline.rollouts, baseline.tokens, baseline.updates) == (30, 210, 2)
    assert baseline.rollouts_saved == SeedInterval(0.0, 0.0)
    assert baseline.mean_16_gain.mean == pytest.approx(0.25 + 0.01 / 3)
    assert baseline.start["mean_16"].mean == 0.25 and baseline.scores["pass_16"].mean == 0.75
    assert (baseline.held_out_start.mean, baseline.held_out.mean) == (0.25, 0.375)


def test_without_gold_there_are_votes_drift_and_costs_alone(tmp_path):
    arms = summarise(MEASURES, study_of(tmp_path, gold=False), "ttrl")
    for arm in arms:
        assert arm.scores == arm.start == {}
        assert arm.mean_16_difference is arm.mean_16_gain is arm.label_accuracy is arm.false_consensus is None
        assert arm.unlabelled.mean == pytest.approx(1 / 3) and arm.leader_share.mean == 0.5
        assert arm.drift.mean == 0.5
    assert arms[1].rollouts_saved.mean > 0.3


def test_a_seed_without_any_label_is_left_out_of_the_shares_of_labels(tmp_path):
    """Otherwise one nan would replace all seeds and make ``summary.json`` invalid."""
    mute = [(0, 0, 0)] * 3
    runs = {arm: [write_run(tmp_path / arm / str(seed), labels=mute) for seed in range(2)] for arm in ("ttrl", "optpo")}
    runs["ttrl"][0] = write_run(tmp_path / "voted")
    ttrl, optpo = summarise(MEASURES, runs, "ttrl")
    assert (ttrl.label_accuracy.mean, ttrl.label_accuracy.half_width) == (pytest.approx(0.6), None)
    assert optpo.label_accuracy is optpo.false_consensus is None
    json.dumps([vars(ttrl), vars(optpo)], default=asdict, allow_nan=False)


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_tables_hold_the_start_every_arm_and_what_was_saved(tmp_path):
    summary = summarise(MEASURES, study_of(tmp_path), "ttrl")
    accuracy, votes = accuracy_table(summary, "ttrl"), vote_table(summary)
    heads, rows = cells(accuracy[0]), [cells(line) for line in accuracy[2:-1]]
    assert [row[0] for row in rows] == ["(start)", "ttrl", "optpo"]
    assert dict(zip(heads, rows[0], strict=True))["mean@16"] == "0.250 ± 0.000"
    assert dict(zip(heads, rows[2], strict=True))["mean@16 - ttrl"] == summary[1].mean_16_difference.signed
    optpo = dict(zip(cells(votes[0]), cells(votes[3]), strict=True))
    assert optpo["labels right"] == "0.600 ± 0.000" and optpo["saved"] == summary[1].tokens_saved.percent
    assert optpo["rollouts"] == "19" and optpo["CPU s"] == "4"


def test_an_arm_that_made_no_label_has_no_shares_of_labels(tmp_path):
    votes = vote_table(summarise(MEASURES, study_of(tmp_path, labels=[(0, 0, 0)] * 3), "ttrl"))
    optpo = dict(zip(cells(votes[0]), cells(votes[3]), strict=True))
    assert optpo["labels right"] == optpo["false consensus"] == "-"


def test_a_saving_beyond_noise_is_told_with_its_accuracy_and_what_is_not_ruled_out(tmp_path):
    summary = summarise(MEASURES, study_of(tmp_path), "ttrl")
    saved, difference = summary[1].rollouts_saved, summary[1].mean_16_difference
    assert verdict(summary, "ttrl") == (
        f"against ttrl: optpo takes {saved.percent} fewer rollouts at mean@16 {difference.signed}"
    )
    said = findings(summary, "ttrl", 3, 60, known=32, prompts=32)
    assert any(line.startswith("optpo takes 35.6% ± 9.6% fewer rollouts and 35.6%") for line in said)
    loss = difference.half_width - difference.mean
    assert any(
        f"within noise ({difference.signed}): a loss of up to {loss:.3f} is not ruled out" in line for line in said
    )
    assert any("Every arm takes 60 steps" in line for line in said)
    assert "Right answers are known for all 32 prompts" in said[-1]
    assert "Right answers are given for 3 of the 32 prompts" in findings(summary, "ttrl", 3, None, 3, 32)[-1]


def test_an_accuracy_that_is_lower_beyond_noise_is_said_to_be(tmp_path):
    said = findings(summarise(MEASURES, study_of(tmp_path, mean_16=(0.4, 0.39)), "ttrl"), "ttrl", 3, 60, 32, 32)
    assert any("its mean@16 is lower beyond noise (-0.103 ± 0.014)" in line for line in said)


def test_more_rollouts_and_as_many_are_called_so(tmp_path):
    more = summarise(MEASURES, study_of(tmp_path / "more", rollouts=(60, 60)), "ttrl")
    assert "optpo takes 100.0% ± 0.0% more rollouts" in verdict(more, "ttrl")
    alike = summarise(MEASURES, study_of(tmp_path / "alike", rollouts=(30, 30)), "ttrl")
    assert verdict(alike, "ttrl") == "against ttrl: as many within noise: optpo"


def test_one_seed_claims_nothing(tmp_path):
    single = {name: mine[:1] for name, mine in study_of(tmp_path).items()}
    summary = summarise(MEASURES, single, "ttrl")
    assert "can be told from noise" in verdict(summary, "ttrl")
    assert not any("beyond" in line or "ruled out" in line for line in findings(summary, "ttrl", 1, 60, 32, 32))
    assert verdict(summary[:1], "ttrl") == "nothing to compare"


def test_without_gold_only_votes_and_drift_are_told(tmp_path):
    summary = summarise(MEASURES, study_of(tmp_path, gold=False), "ttrl")
    heads = cells(vote_table(summary)[0])
    assert "labels right" not in heads and "drift" in heads and "no label" in heads
    said = findings(summary, "ttrl", 3, 60, 0, 32)
    assert any("what that does to accuracy is not shown" in line for line in said)
    assert said[-1] == "No right answer is given for the 32 prompts, so only votes and drift are shown."
    assert not any("mean@16" in line for line in said)


@pytest.mark.parametrize("gold", [True, False])
def test_the_picture_is_drawn_with_gold_and_without(tmp_path, gold):
    path = tmp_path / "curves.svg"
    draw(panels(study_of(tmp_path, gold=gold)), "one; two", [path])
    assert path.stat().st_size > 5000
