"""The answers that somebody else recorded are counted by a rule of this library."""

import json

import pytest
from typer.testing import CliRunner

from apportion.cli import app
from apportion.records import open_run
from apportion.stopping import decide
from apportion.vote.recorded import revote_record
from tests.records.importing.tables import jsonl

ANSWERS = [["4"] * 8, ["1", "2", "1", "1", "3", "1", "1", "2"], ["7", "8"] * 4]
GOLD = ["4", "2", "7"]


@pytest.fixture
def path(tmp_path):
    rows = [
        {"idx": q, "question": f"q{q}", "answer": gold, "pred": own, "score": [each == gold for each in own]}
        for q, (own, gold) in enumerate(zip(ANSWERS, GOLD, strict=True))
    ]
    return jsonl(tmp_path / "run.jsonl", rows)


def test_a_rule_takes_of_them_what_it_takes_of_a_stream(path):
    found = revote_record(open_run(path), rule="adaptive_consistency_beta", curtail=False)
    expected = decide(ANSWERS, "adaptive_consistency_beta", 8)
    assert found.samples == expected.samples.mean() and (found.questions, found.max_samples) == (3, 8)
    full = decide(ANSWERS, "fixed", 8)
    assert found.agreement == sum(a == b for a, b in zip(expected.answer, full.answer, strict=True)) / 3
    assert found.full_accuracy == 2 / 3  # the second majority is wrong


def test_the_command_says_it_with_the_doubts(path):
    done = CliRunner().invoke(app, ["revote", str(path), "--rule", "esc", "--set", "window=4"])
    assert done.exit_code == 0, done.output
    assert (
        "? read as: " in done.stdout and "esc, window = 4" in done.stdout and "with all samples 66.67%" in done.stdout
    )
    found = json.loads(CliRunner().invoke(app, ["revote", str(path), "--json", "--max-samples", "4"]).stdout)
    assert found["max_samples"] == 4 and found["rule"] == "calibrated, eps = 0.01"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--weight", "tokens"],
            "recorded answers take --rule, --set, --target, --max-samples and --curtail, got weight",
        ),
        (["--max-samples", "9"], "max_samples must be at most 8, the samples of a question, got 9"),
        (["--rule", "nothing"], "rule must be known, got 'nothing'"),
        (["--column", "answer=answer"], ""),
    ],
)
def test_what_cannot_be_counted_is_refused_in_one_line(path, arguments, message):
    done = CliRunner().invoke(app, ["revote", str(path), *arguments])
    if message:
        assert done.exit_code == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1
    else:  # an explicit column is obeyed, and doubted
        assert done.exit_code == 0 and "answer is no sample's answer" in " ".join(done.stdout.split())


def test_answers_that_were_not_recorded_are_named(tmp_path):
    rows = [{"id": q, "correct": k % 2} for q in range(3) for k in range(4)]
    done = CliRunner().invoke(app, ["revote", str(jsonl(tmp_path / "a.jsonl", rows))])
    assert done.exit_code == 2 and "a vote needs the answers of the samples, got none in a; name them" in done.stderr
