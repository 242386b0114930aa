import json
from dataclasses import asdict

import numpy as np
import pytest

from apportion.lab.report.measures import summarise
from apportion.lab.report.results import Run, SeedInterval
from apportion.lab.report.without_labels import MEASURES, report
from apportion.lab.training.pool import Pool
from tests.builders import write_jsonl

LABELS = [(4, 2, 1), (1, 1, 0), (0, 0, 0)]
"""The number of labels with known gold, right labels and false consensus of each step."""
SCORES = ("mean_16", "pass_16", "pass_1", "maj_16", "prompts_success")


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
    assert (run.final("mean_16"), run.final("drift")) == (0.5, 0.5)
    assert run.cpu_seconds == 4.5


def test_savings_and_differences_are_paired_by_seed(tmp_path):
    runs = study_of(tmp_path)
    baseline, arm = summarise(MEASURES, runs, "ttrl")
    saved = [1 - 20 / 30, 1 - 18 / 30, 1 - 20 / 30]
    assert arm.rollouts_saved == SeedInterval.of(saved)
    assert arm.tokens_saved.mean == pytest.approx(np.mean(saved))
    assert arm.mean_16_difference.mean == pytest.approx(-0.05 / 3)
    assert arm.mean_16_difference.half_width == pytest.approx(SeedInterval.of([-0.05, 0, 0]).half_width)
    assert (baseline.rollouts, baseline.tokens) == (30, 210)
    assert baseline.rollouts_saved == SeedInterval(0.0, 0.0)
    assert baseline.mean_16_gain.mean == pytest.approx(0.25 + 0.01 / 3)
    assert (baseline.pass_16.mean, baseline.held_out.mean) == (0.75, 0.375)


def test_a_seed_without_any_label_is_left_out_of_the_shares_of_labels(tmp_path):
    """Otherwise one nan would replace all seeds and make ``summary.json`` invalid."""
    mute = [(0, 0, 0)] * 3
    runs = {arm: [write_run(tmp_path / arm / str(seed), labels=mute) for seed in range(2)] for arm in ("ttrl", "optpo")}
    runs["ttrl"][0] = write_run(tmp_path / "voted")
    ttrl, optpo = summarise(MEASURES, runs, "ttrl")
    assert (ttrl.label_accuracy.mean, ttrl.label_accuracy.half_width) == (pytest.approx(0.6), None)
    assert optpo.label_accuracy is optpo.false_consensus is None
    json.dumps([vars(ttrl), vars(optpo)], default=asdict, allow_nan=False)


def told(runs, steps=60, known=32):
    """Return the report on 32 prompts: a row for each arm with the cells of both tables, and its sentences."""
    pool = Pool(tuple(range(32)), (), dict.fromkeys(map(str, range(known)), frozenset("1")))
    _, lines = report(runs, "ttrl", steps, pool)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"]
    tables = cells[: len(cells) // 2], cells[len(cells) // 2 :]
    one, two = ([dict(zip(head, row, strict=True)) for row in rows] for head, _, *rows in tables)
    arms = [mine | more for mine, more in zip(one, two, strict=True)]
    return arms, [line for line in lines if line and line[:1] != "|"]


def test_the_tables_hold_every_arm_and_what_was_saved(tmp_path):
    runs = study_of(tmp_path)
    (ttrl, optpo), _ = told(runs)
    summary = summarise(MEASURES, runs, "ttrl")[1]
    assert (ttrl["allocator"], optpo["allocator"], ttrl["- start"]) == ("ttrl", "optpo", "+0.253 ± 0.038")
    assert optpo["- baseline"] == summary.mean_16_difference.signed
    assert optpo["labels right"] == "0.600 ± 0.000" and optpo["saved"] == f"{summary.tokens_saved:.1%}"
    assert optpo["rollouts"] == "19" and optpo["CPU s"] == "4"
    assert (optpo["no label"], optpo["leader's share"]) == ("0.333 ± 0.000", "0.500 ± 0.000")


def test_an_arm_that_made_no_label_has_no_shares_of_labels(tmp_path):
    runs = study_of(tmp_path / "mute", labels=[(0, 0, 0)] * 3) | {"ttrl": study_of(tmp_path)["ttrl"]}
    assert told(runs)[0][1]["labels right"] == told(runs)[0][1]["false consensus"] == "-"


def test_a_saving_beyond_noise_is_told_with_its_accuracy_and_what_is_not_ruled_out(tmp_path):
    runs = study_of(tmp_path)
    arm = summarise(MEASURES, runs, "ttrl")[1]
    saved, difference = arm.rollouts_saved, arm.mean_16_difference
    _, said = told(runs)
    assert said[0].startswith(f"rollouts saved of ttrl's beyond noise: optpo ({saved:.1%}) (3 seeds; ")
    loss = difference.half_width - difference.mean
    assert said[1] == (
        f"The mean@16 of optpo is within noise ({difference.signed}): a loss of up to {loss:.3f} is not ruled out."
    )
    assert "Every arm takes 60 steps" in said[2] and "Right answers are known for all 32 prompts" in said[-1]
    _, said = told(runs, steps=None, known=3)
    assert not any("steps" in line for line in said)
    assert "Right answers are given for 3 of the 32 prompts" in said[-1]


def test_an_accuracy_that_is_lower_beyond_noise_is_said_to_be(tmp_path):
    _, said = told(study_of(tmp_path, mean_16=(0.4, 0.39)))
    assert "The mean@16 of optpo is lower beyond noise (-0.103 ± 0.014)." in said


def test_as_many_rollouts_and_one_seed_claim_nothing(tmp_path):
    runs = study_of(tmp_path, rollouts=(30, 30))
    assert told(runs)[1][0].startswith("Within noise of ttrl: optpo (")
    _, said = told({name: mine[:1] for name, mine in runs.items()})
    assert "can be told from noise" in said[0]
    assert not any("beyond" in line or "ruled out" in line for line in said)
    assert told({"ttrl": runs["ttrl"]})[1][0].startswith("Nothing to compare")


def test_without_gold_only_votes_and_drift_are_told(tmp_path):
    (_, optpo), said = told(study_of(tmp_path, gold=False), known=0)
    assert "labels right" not in optpo and "mean@16" not in optpo and "drift" in optpo and "no label" in optpo
    assert "What optpo does to accuracy is not shown." in said
    assert said[-1] == "No right answer is given for the 32 prompts, so only votes and drift are shown."
    assert not any("mean@16" in line for line in said)
