"""Whatever a path is: it is recognised, read as far as it is whole, or refused in one line."""

import json
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from apportion.records import RecordError, write_record
from apportion.report import RunProfile, VoteProfile, page_of, read_sources, report_of
from apportion.vote.journal import samples_path, settings_path
from apportion.vote.lines import JournalError
from tests.report.builders import make_record, make_study, make_vote, write_run
from tests.test_house import ROOT

pytest.importorskip("pyarrow")


@pytest.fixture
def log(tmp_path):
    write_record(make_record(steps=4, prompts=4), tmp_path / "log")
    return tmp_path / "log"


def test_every_source_is_recognised(tmp_path, log):
    job = tmp_path / "job"
    write_record(make_record(steps=4, prompts=4, seed=1), job / "rollouts")
    study, vote = make_study(tmp_path / "study"), make_vote(tmp_path / "answers.jsonl")
    counts = ROOT / "examples" / "data" / "grpo_run.jsonl.gz"
    found = read_sources([log, job, job / "rollouts", study, study / "vip-seed0", vote, counts])
    names = ["log", "job (1)", "job (2)", "study: uniform", "study: vip", "vip-seed0: vip", "answers", "grpo_run"]
    assert [each.name for each in found] == names
    assert [type(each) for each in found] == [RunProfile] * 6 + [VoteProfile, RunProfile]
    assert [each.name for each in read_sources([study])] == ["uniform", "vip"]
    assert [each.name for each in read_sources([tmp_path])] == [tmp_path.name]  # a folder with answers.jsonl


def test_an_arm_is_the_mean_of_its_seeds(tmp_path):
    uniform, vip = read_sources([make_study(tmp_path / "study", seeds=3)])
    assert (uniform.source, uniform.totals.steps, uniform.totals.rollouts) == ("lab study, 3 seeds", 90, 3 * 30 * 32)
    assert vip.held_out.y[-1] > uniform.held_out.y[-1]
    assert (
        sum(vip.totals.dead_kinds.values()) == pytest.approx(vip.totals.dead.value)
        and vip.places["rollouts"][-1] == 960
    )
    assert 0.005 < vip.calibration.error < 0.02  # the predictions have errors of 0.1
    assert (vip.calibration.curve.low < vip.calibration.curve.y).all() and vip.calibration.groups.sum() == 3 * 30 * 8
    assert vip.bands.sum(axis=1) == pytest.approx(1)
    header = ("run", "source", "steps", "rollouts", "tokens", "hours", "success", "in dead groups")
    assert report_of([vip]).overviews[0].header == header, "the prompts of a study are unknown"


def test_groups_of_one_are_not_called_dead(tmp_path):
    write_run(tmp_path / "study" / "single-seed0", 10, size=1)
    (found,) = read_sources([tmp_path / "study"])
    assert not found.dead and found.totals.dead is None


def test_a_torn_last_line_of_metrics_is_left_out(tmp_path):
    write_run(tmp_path / "run", 10)
    path = tmp_path / "run" / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-7])
    (found,) = read_sources([tmp_path / "run"])
    assert found.totals.steps == 9


OTHER = """nonsense
[1, 2]
{"step": 1, "counts": [1], "p": [0.5]}
{"step": 1, "counts": ["a"], "p": [0.5], "predicted": [0.5]}
{"step": 4, "rollouts": NaN, "tokens": 9, "success": 0.5}
{"step": 4, "rollouts": 1e999, "tokens": 9, "success": 0.5}
{"step": 4, "rollouts": 9, "success": 0.5}"""


@pytest.mark.parametrize("line", [*OTHER.splitlines(), "[" * 10_000, "\x00"])
def test_other_lines_in_metrics_are_refused(tmp_path, line):
    write_run(tmp_path / "run", 3)
    path = tmp_path / "run" / "metrics.jsonl"
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl"):
        read_sources([tmp_path / "run"])


def test_every_mutation_of_metrics_is_read_or_refused(tmp_path):
    write_run(tmp_path / "run", 5)
    path = tmp_path / "run" / "metrics.jsonl"
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(200):
        changed = bytearray(whole)
        for at in rng.integers(0, len(changed), rng.integers(1, 5)):
            changed[at] = rng.integers(0, 256)
        path.write_bytes(bytes(changed[: rng.integers(1, len(changed) + 1)]))
        with suppress(ValueError):  # anything else fails
            page_of(report_of(read_sources([tmp_path / "run"])))


def test_votes_are_counted_by_their_ballots(tmp_path):
    path = make_vote(tmp_path / "answers.jsonl", questions=40, most=16)
    (found,) = read_sources([path])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert found.samples.tolist() == [row["samples"] for row in rows]
    assert found.saved == pytest.approx(1 - sum(row["samples"] for row in rows) / 640)
    assert (found.open_questions, found.open_samples) == (1, 3)
    (table,) = report_of([found]).overviews
    full = sum(row["samples"] == 16 for row in rows)
    assert full and table.rows[0][table.header.index("full votes")] == str(full)
    assert not report_of([replace(found, correct=np.full(40, np.nan))]).charts, (
        "answers of no known truth are not wrong"
    )
    assert np.isfinite(found.share).all() and found.unparsed.sum() == sum(row["unparsed"] for row in rows)


def test_a_vote_without_a_finished_question_is_shown(tmp_path):
    path = make_vote(tmp_path / "answers.jsonl", questions=0)
    (found,) = read_sources([path])
    assert found.saved is None and found.open_samples == 3


def test_settings_of_a_vote_that_cannot_be_are_refused(tmp_path):
    path = make_vote(tmp_path / "answers.jsonl", questions=3)
    settings_path(path).write_text('{"max_samples": 1}')
    with pytest.raises(JournalError, match=r"max_samples in .* must be an integer from"):
        read_sources([path])
    settings_path(path).unlink()
    assert read_sources([path])[0].max_samples is None
    samples_path(path).unlink()
    with pytest.raises(RecordError):
        read_sources([path])  # without both, nothing says that it is a vote


def test_what_holds_no_run_is_refused(tmp_path, log):
    with pytest.raises(ValueError, match="must be a file or a folder that exists"):
        read_sources([tmp_path / "missing"])
    (tmp_path / "notes.jsonl").write_text("hello\n")
    with pytest.raises(RecordError, match="a line must be JSON"):
        read_sources([tmp_path / "notes.jsonl"])
    with pytest.raises(ValueError, match="at most 16 runs are shown side by side, got 17"):
        read_sources([log] * 17)
    write_run(tmp_path / "started", 0)
    with pytest.raises(ValueError, match="must hold runs with steps, got none so far"):
        read_sources([tmp_path / "started"])
