"""The answers that somebody else recorded are counted by a rule of this library."""

import pytest

from apportion.records import open_run
from apportion.stopping import decide
from apportion.vote.recorded import revote_record
from tests.commands import parsed, printed, refuse_all, refused
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
    said = printed("revote", path, "--rule", "esc", "--set", "window=4")
    assert "? read as: " in said and "esc, window = 4" in said and "with all samples 66.67%" in said
    found = parsed("revote", path, "--max-samples", 4)
    assert found["max_samples"] == 4 and found["rule"] == "calibrated, eps = 0.01"


def test_what_cannot_be_counted_is_refused_in_one_line(path):
    wrong = """
        --weight tokens => recorded answers take --rule, --set, --target, --max-samples and --curtail, got weight
        --max-samples 9 => max_samples must be at most 8, the samples of a question, got 9
        --max-samples 0  => a vote needs 2 samples of a question, got 0
        --rule nothing  => rule must be known, got 'nothing'
    """
    refuse_all(wrong, "revote", path)


def test_a_column_that_is_named_is_obeyed_and_doubted(path):
    said = printed("revote", path, "--column", "answer=answer")
    assert "answer is no sample's answer" in " ".join(said.split())


def test_answers_that_were_not_recorded_are_named(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", [{"id": q, "correct": k % 2} for q in range(3) for k in range(4)])
    assert "a vote needs the answers of the samples, got none in a; name them" in refused("revote", path)
    assert "answers must be in a file that exists" in refused("revote", tmp_path / "no.jsonl")
