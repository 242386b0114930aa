import errno
import json
import os
import re
import resource
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.vote import Ballot
from apportion.vote.journal import Journal, VoteRecord, read_finished, read_recorded, samples_path, settings_path
from apportion.vote.lines import JournalError, sealed
from apportion.vote.sample import Sample
from apportion.vote.setup import make_setup
from tests.cases import lines
from tests.vote.builders import make_ballot, make_sample

GIVEN = {"model": "m", "rule": "optpo", "rule_settings": {"alpha": 0.05}, "extra_body": {"top_k": 20}}


def setup_of(**changes):
    return make_setup(**{"base_url": "http://localhost:8000/v1"} | GIVEN | changes)


SETUP = setup_of()


def finished(path, setup=SETUP):
    return read_finished(path, setup).ballots


def write(path, *ids, samples=(), setup=SETUP, **settings):
    """Continue the vote at ``path`` with these samples and ballots."""
    with Journal(path, setup, **settings) as journal:
        for sample in samples:
            journal.keep(sample)
        for ballot in ids:
            journal.append(make_ballot(ballot) if isinstance(ballot, str) else ballot)


def edit(path, **changes):
    """Change fields of the first line, whose checksum is right again."""
    line = json.loads(path.read_text().splitlines()[0]) | changes
    line.pop("checksum")
    path.write_text(sealed(line) + "\n")


def expect_refusal(path, problem, setup=SETUP, reading=True, **settings):
    """A reader, and a writer with ``settings``, are refused in one line, and change nothing."""
    before = {each: each.read_bytes() for each in path.parent.iterdir() if each.is_file()}
    for use in [lambda: Journal(path, setup, **settings)] + [lambda: finished(path, setup)] * reading:
        with pytest.raises(JournalError, match=problem) as caught:
            use()
        assert "\n" not in str(caught.value)
    assert all(each.read_bytes() == content for each, content in before.items())


@pytest.fixture
def out(tmp_path):
    return tmp_path / "answers.jsonl"


def test_ballots_can_be_read_back(out):
    ballots = [
        make_ballot("a", errors=("500",)),
        make_ballot("b", answer=None, votes={}, unparsed=5, gold=None, correct=None),
    ]
    with Journal(out, SETUP) as journal:
        for ballot in ballots:
            journal.append(ballot)
            assert finished(out)[ballot.id] == ballot  # on disk already
        with pytest.raises(JournalError, match="written once"):
            journal.append(ballot)
    with Journal(out, SETUP) as journal:
        assert list(journal.ballots.values()) == ballots
    assert json.loads(settings_path(out).read_text()) == SETUP.resolved()


def test_an_answer_whose_numbers_no_vote_can_have_is_refused(out):
    wrong = """
        {"samples": 6}
        {"votes": {"7": 3, "8": 2}}
        {"votes": {"7": 5, "8": -1}}
        {"answer": "9"}
        {"answer": null}
        {"seconds": -1.0}
        {"disagreement": 1.5}
        {"waves": -1}
        {"completion_tokens": -1}
        {"correct": null}
        {"gold": null}
    """
    for (changes,) in lines(wrong):
        out.write_text(make_ballot().to_json())
        edit(out, **json.loads(changes))
        expect_refusal(out, "must hold answers of apportion vote, got something else in line 1")


def test_a_line_that_is_no_sample_is_refused(out):
    write(out, samples=[make_sample()])
    for changes in ({"text": 7}, {"number": -1}, {"tokens": -5}, {"answer": 7}, {"more": 1}):
        samples_path(out).write_text(make_sample().to_json())
        edit(samples_path(out), **changes)
        expect_refusal(out, "must hold samples of apportion vote, got something else in line 1")


def test_a_digit_that_was_changed_is_noticed(out):
    write(out, "a", samples=[make_sample("b", 0)])
    for path in (out, samples_path(out)):
        whole = path.read_text()
        path.write_text(whole.replace("7", "3", 1))
        expect_refusal(out, "got something else in line 1; remove that line")
        path.write_text(whole)


def test_a_line_that_is_no_new_answer_or_in_another_encoding_is_refused(out):
    """json.loads would guess the encoding of each line."""
    write(out, "a", "b")
    whole = out.read_bytes()
    unsealed = re.sub(', "checksum": "[^"]*"', "", make_ballot("c").to_json())
    for line in ("{}", "[1]", "null", '{"id": "a"}', "text", make_ballot("a").to_json(), unsealed):
        out.write_bytes(whole + f"{line}\n".encode())
        expect_refusal(out, "line 3")
    for encoding in ("utf-16", "utf-16-le", "utf-32", "utf-8-sig"):
        out.write_bytes(whole.decode().encode(encoding))
        expect_refusal(out, "must hold answers of apportion vote, got something else in line 1")


@given(text=st.text(), answer=st.text())
def test_any_text_is_one_line(text, answer):
    ballot = make_ballot(text, answer=answer, votes={answer: 4})
    sample = make_sample(text, text=text, answer=answer)
    for each, kind in ((ballot, Ballot), (sample, Sample)):
        line = each.to_json()
        assert "\n" not in line and kind.from_json(line) == each


@pytest.mark.parametrize(("kept", "zeros"), [(1, 0), (40, 0), (-2, 0), (0, 9), (40, 9)])
def test_a_torn_last_line_is_cut(out, kept, zeros):
    """A loss of power may leave zeros in its place."""
    write(out, "a", "b", samples=[make_sample("c", 0), make_sample("c", 1)])
    paths, wholes, firsts = (out, samples_path(out)), [], []
    for path in paths:
        whole = path.read_bytes()
        first = whole.index(b"\n") + 1
        path.write_bytes((whole[: first + kept] if kept >= 0 else whole[:kept]) + bytes(zeros))
        wholes.append(whole)
        firsts.append(whole[:first])
    assert list(finished(out)) == ["a"]
    write(out, "b", samples=[make_sample("c", 1)])
    assert [path.read_bytes() for path in paths] == wholes


def test_one_line_of_somebody_else_without_a_line_break_is_not_taken_for_a_torn_one(out):
    out.write_text('{"id": "a", "prompt": "What is 1 + 1?", "answer": "2"}')
    expect_refusal(out, "got something else in line 1")
    expect_refusal(out, "got something else in line 1", reading=False, overwrite=True)


def test_a_last_line_without_a_line_break_is_kept(out):
    write(out, "a", "b")
    out.write_bytes(out.read_bytes()[:-1])
    write(out, "c")
    assert list(finished(out)) == ["a", "b", "c"]


def test_other_settings_are_refused_by_name(out):
    write(out, "a")
    other = """
        {"rule_settings": {"alpha": 0.01}}  => started with rule.alpha = 0.05, got 0.01; resume to count
        {"model": "n", "rule": "esc", "rule_settings": {}} => started with model = 'm', got 'n'; use the same
        {"model": "n", "temperature": 1.0}  => started with model = 'm', got 'n', and 1 more; use the same
        {"extra_body": {}}                  => started with extra_body.top_k = 20, got nothing; use the same
    """
    for changes, problem in lines(other):
        expect_refusal(out, problem, setup_of(**json.loads(changes)))
    write(out, "b")
    assert list(finished(out)) == ["a", "b"]


def test_the_address_the_version_and_a_key_in_the_body_may_change(out):
    old, new = ({"extra_body": {"top_k": 20, "api_key": key}} for key in ("first-key", "second-key"))
    write(out, "a", setup=setup_of(**old))
    started = json.loads(settings_path(out).read_text()) | {"apportion": "99.0"}
    settings_path(out).write_text(json.dumps(started))
    assert list(finished(out, setup_of(**new, base_url="http://localhost:8001/v1"))) == ["a"]
    new["extra_body"]["top_k"] = 30
    expect_refusal(out, r"started with extra_body\.top_k = 20, got 30", setup_of(**new))


def test_settings_may_change_while_nothing_was_sampled(out):
    write(out)
    assert not list(out.parent.glob("answers.*json*")), "a run without a sample leaves no file behind"
    other = setup_of(model="n")
    write(out, "a", setup=other)
    assert list(finished(out, other)) == ["a"]


def test_settings_that_are_no_settings_are_refused(out):
    write(out, "a")
    for content in ("[]", "{", "null", None):
        settings_path(out).write_text(content) if content else settings_path(out).unlink()
        expect_refusal(out, r"answers\.run\.json must say under which settings, got none; restore it")


def test_overwriting_removes_earlier_answers(out):
    write(out, "a", samples=[make_sample("c")])
    other = setup_of(model="n")
    with Journal(out, other, overwrite=True) as journal:
        assert not journal.ballots and not journal.samples
        journal.append(make_ballot("b"))
    assert list(finished(out, other)) == ["b"] and not samples_path(out).exists()


def test_what_is_no_vote_and_a_run_that_shall_resume_are_not_overwritten(out):
    """The user may have given the questions as ``out`` by mistake. A torn line alone is overwritten."""
    out.write_text('{"prompt": "6 x 7?"}\n')
    problem = "must hold answers of apportion vote, got something else in line 1"
    expect_refusal(out, problem, reading=False, overwrite=True)
    assert not settings_path(out).exists()
    out.write_text('{"id": "a", "ques')
    write(out, overwrite=True)
    assert not out.exists()
    write(out, "a")
    problem = "resume must be left out with overwrite"
    expect_refusal(out, problem, reading=False, overwrite=True, resume=True)


def test_two_runs_on_one_file_are_refused(out):
    with Journal(out, SETUP) as journal:
        journal.append(make_ballot("a"))
        with pytest.raises(JournalError, match="one run writes to a file at a time"):
            Journal(out, SETUP, overwrite=True)
    write(out, "b")
    assert list(finished(out)) == ["a", "b"]


def test_a_full_disk_is_reported_in_one_line_and_the_torn_line_is_cut(out, monkeypatch):
    """Other samples may arrive before the run has ended, and find room again."""

    def refuse(_):
        raise OSError(errno.EDQUOT, "quota full")

    write(out, "a")
    whole = out.read_bytes()
    room, limits = len(whole) + 30, resource.getrlimit(resource.RLIMIT_FSIZE)
    with Journal(out, SETUP) as journal:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
        try:
            with pytest.raises(JournalError, match="an answer cannot be written to") as caught:
                journal.append(make_ballot("b"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert "\n" not in str(caught.value) and out.read_bytes() == whole
        journal.append(make_ballot("c"))
        monkeypatch.setattr(os, "fsync", refuse)
        with pytest.raises(JournalError, match=r"a sample cannot be written to .* \(quota full\); make room"):
            journal.append(make_ballot("d"))
    assert list(finished(out)) == ["a", "c"]


def test_a_path_that_cannot_be_used_is_refused(tmp_path):
    """No file can be made in /proc, not even by root."""
    expect_refusal(tmp_path / "answers.csv", "written as .jsonl")
    with pytest.raises(JournalError, match="a folder that exists"):
        Journal(tmp_path / "missing" / "answers.jsonl", SETUP)
    if Path("/proc/self").is_dir():
        with pytest.raises(JournalError, match=r"cannot be written to /proc/self/answers\.jsonl .*; change the path"):
            Journal(Path("/proc/self/answers.jsonl"), SETUP)


def test_reading_changes_nothing(tmp_path):
    assert read_finished(tmp_path / "answers.jsonl", SETUP) == VoteRecord() and not list(tmp_path.iterdir())


NO_FILES = [
    ("answers.jsonl", os.mkfifo, "must be a file, got a named pipe; remove it"),
    ("answers.lock", Path.mkdir, "lock must be a file, got a folder"),
    ("answers.samples.jsonl", os.mkfifo, "must be a file, got a named pipe"),
    ("answers.run.json", os.mkfifo, "must be a file, got a named pipe"),
]
"""What may stand in the place of each file; tests/runs/test_whole_files.py has every kind."""


@pytest.mark.parametrize(("name", "make", "problem"), NO_FILES)
def test_what_is_not_a_file_is_refused_and_never_waited_for(out, name, make, problem):
    damaged = out.with_name(name)
    make(damaged)
    expect_refusal(out, problem)
    damaged.rmdir() if damaged.is_dir() else damaged.unlink()  # the remedy
    write(out, "a")
    assert list(finished(out)) == ["a"]


def test_samples_of_an_open_question_can_be_read_back(out):
    """Those that failed are left out, because they are requested again."""
    failed = make_sample("a", 1, text=None, error="500")
    samples = [make_sample("a", 0), make_sample("a", 2), make_sample("b", 0), failed]
    write(out, samples=samples)
    found = read_finished(out, SETUP).samples
    assert {id: list(mine) for id, mine in found.items()} == {"a": [0, 2], "b": [0]}
    assert found["a"][2] == samples[1].without_text()
    write(out, samples=[make_sample("a", 1)])
    assert sorted(read_finished(out, SETUP).samples["a"]) == [0, 1, 2]
    line = samples[0].to_json()
    samples_path(out).write_text(f"{line}\n{line}\n")
    expect_refusal(out, "must hold a sample once, got 0 of 'a' again in line 2; remove it")


def test_samples_are_counted_again_only_if_the_run_says_so_and_has_them(out):
    write(out, make_ballot("a", texts=1, completion_tokens=25), samples=[make_sample("a", n) for n in range(5)])
    other = setup_of(rule="esc", rule_settings={})
    expect_refusal(out, r"started with rule = 'optpo', got 'esc', .*; resume to count its samples again", other)
    with Journal(out, other, resume=True) as journal:
        assert not journal.ballots and sorted(journal.samples["a"]) == [0, 1, 2, 3, 4]
        journal.append(make_ballot("a", stopped="max_samples"))
    assert finished(out, other)["a"].stopped == "max_samples"
    samples_path(out).unlink()
    problem = "must hold the samples of every question to count them again, got 0 of 5"
    expect_refusal(out, problem, reading=False, resume=True)


@pytest.mark.parametrize("changes", [{"question_hash": "9"}, {"text": "Another \\boxed{7}."}, {"tokens": 6}])
def test_samples_of_another_run_beside_the_answers_are_refused(out, changes):
    texts = [f"{number} \\boxed{{7}}." for number in (0, 0, 1, 2, 3)]

    def samples(text=None, **changes):
        made = (make_sample("a", n, text=text or own, tokens=5) for n, own in enumerate(texts))
        return [replace(each, **changes) for each in made]

    write(out, make_ballot("a", completion_tokens=25), samples=samples())
    assert read_recorded(out).samples["a"].keys() == set(range(5))
    samples_path(out).write_text("".join(f"{each.to_json()}\n" for each in samples(**changes)))
    for read in (lambda: read_recorded(out), lambda: Journal(out, setup_of(max_samples=32), resume=True)):
        with pytest.raises(
            JournalError, match=r"must hold the samples that answers\.jsonl counted, got others for 'a'"
        ):
            read()


def test_another_extraction_reads_the_texts_again_and_needs_them(out):
    write(out, samples=[make_sample("a", 0, text="It is 7 of 12", answer=None)])
    other = setup_of(extract="last_number")
    assert read_finished(out, other).samples["a"][0].answer == "12"
    write(out, samples=[make_sample("a", 1).without_text()])
    expect_refusal(out, "must hold the texts to read other answers in them, got none in line 2", other)


def test_files_of_a_run_that_kept_nothing_do_not_hinder_the_next_one(out):
    """A kill between the making of the files and that of the settings leaves empty files."""
    samples_path(out).touch()
    out.touch()
    with Journal(out, SETUP) as journal:
        assert not journal.ballots and not journal.samples


def test_an_error_while_settings_are_written_is_one_line_on_a_disk_that_refuses_all_changes(out, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("apportion.vote.journal.write_whole", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(JournalError, match="settings cannot be written"):
        Journal(out, SETUP)
