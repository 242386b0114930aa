from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.vote import Ballot
from apportion.vote.journal import Journal, VoteRecord, read_finished, read_recorded, samples_path, settings_path
from apportion.vote.lines import JournalError
from apportion.vote.sample import Sample
from apportion.vote.setup import Setup, make_setup
from tests.vote.builders import make_ballot, make_sample

ROOT = Path(__file__).parents[2]
GIVEN: dict[str, Any] = {"model": "m", "rule": "optpo", "rule_settings": {"alpha": 0.05}, "extra_body": {"top_k": 20}}


def setup_of(**changes: Any) -> Setup:
    return make_setup(**{"base_url": "http://localhost:8000/v1"} | GIVEN | changes)


SETUP = setup_of()


def finished(path: Path, setup: Setup = SETUP) -> dict[str, Ballot]:
    return read_finished(path, setup).ballots


def write(path: Path, *ids: str) -> None:
    with Journal(path, SETUP) as journal:
        for id in ids:
            journal.append(make_ballot(id))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "answers.jsonl"


def test_ballots_can_be_read_back(out: Path) -> None:
    ballots = [
        make_ballot("a", errors=("500",)),
        make_ballot("b", answer=None, votes={}, unparsed=5, gold=None, correct=None),
    ]
    with Journal(out, SETUP) as journal:
        for ballot in ballots:
            journal.append(ballot)
            assert finished(out)[ballot.id] == ballot  # on disk already
    with Journal(out, SETUP) as journal:
        assert list(journal.ballots.values()) == ballots
    assert json.loads(settings_path(out).read_text()) == SETUP.resolved()


@pytest.mark.parametrize(
    "changes",
    [
        {"samples": 6}, {"votes": {"7": 3, "8": 2}}, {"votes": {"7": 5, "8": -1}}, {"answer": "9"}, {"answer": None},
        {"seconds": -1.0}, {"seconds": float("nan")}, {"disagreement": 1.5}, {"waves": -1}, {"completion_tokens": -1},
        {"correct": None}, {"gold": None},
    ],
)  # fmt: skip
def test_an_answer_whose_numbers_no_vote_can_have_is_refused(out: Path, changes: dict[str, Any]) -> None:
    write(out, "a")
    record = json.loads(out.read_bytes()) | changes
    del record["checksum"]
    out.write_text(json.dumps(record) + "\n")
    with pytest.raises(JournalError, match="must hold answers of apportion vote, got something else in line 1"):
        finished(out)


def test_a_digit_that_was_changed_is_noticed(out: Path) -> None:
    with Journal(out, SETUP) as journal:
        journal.keep(make_sample("b", 0))
        journal.append(make_ballot("a"))
    for path in (out, samples_path(out)):
        whole = path.read_text()
        path.write_text(whole.replace("7", "3", 1))
        with pytest.raises(JournalError, match="got something else in line 1; remove that line"):
            Journal(out, SETUP)
        path.write_text(whole)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
def test_answers_in_another_encoding_are_refused(out: Path, encoding: str) -> None:
    """json.loads would guess the encoding of each line."""
    write(out, "a")
    out.write_bytes(out.read_text().encode(encoding))
    with pytest.raises(JournalError, match="must hold answers of apportion vote, got something else in line 1"):
        finished(out)


@given(text=st.text(), answer=st.text())
def test_any_text_is_one_line(text: str, answer: str) -> None:
    ballot = make_ballot(text, answer=answer, votes={answer: 4})
    sample = make_sample(text, text=text, answer=answer)
    for each, kind in ((ballot, Ballot), (sample, Sample)):
        line = each.to_json()
        assert "\n" not in line and kind.from_json(line) == each


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_a_torn_last_line_is_cut(out: Path, kept: int) -> None:
    write(out, "a", "b")
    whole = out.read_bytes()
    first = whole.index(b"\n") + 1
    out.write_bytes(whole[: first + kept] if kept > 0 else whole[:-2])
    assert list(finished(out)) == ["a"]
    write(out, "c")
    assert out.read_bytes().startswith(whole[:first]) and list(finished(out)) == ["a", "c"]


def test_a_last_line_without_a_line_break_is_kept(out: Path) -> None:
    write(out, "a", "b")
    out.write_bytes(out.read_bytes()[:-1])
    write(out, "c")
    assert list(finished(out)) == ["a", "b", "c"]


@pytest.mark.parametrize("line", ["{}", "[1]", "null", '{"id": "a"}', "text", make_ballot("a").to_json()])
def test_a_line_that_is_no_new_answer_is_refused(out: Path, line: str) -> None:
    write(out, "a", "b")
    with out.open("a") as file:
        file.write(f"{line}\n")
    before = out.read_bytes()
    with pytest.raises(JournalError, match="line 3"):
        Journal(out, SETUP)
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rule_settings": {"alpha": 0.01}}, "started with rule.alpha = 0.05, got 0.01; resume to count"),
        ({"model": "n", "rule": "esc", "rule_settings": {}}, "started with model = 'm', got 'n'; use the same"),
        ({"model": "n", "temperature": 1.0}, "started with model = 'm', got 'n', and 1 more; use the same"),
        ({"extra_body": {}}, "started with extra_body.top_k = 20, got nothing; use the same"),
    ],
)
def test_other_settings_are_refused_by_name(out: Path, changes: dict[str, Any], problem: str) -> None:
    write(out, "a")
    with pytest.raises(JournalError, match=problem):
        Journal(out, setup_of(**changes))
    write(out, "b")
    assert list(finished(out)) == ["a", "b"]


def test_the_address_and_the_version_may_change(out: Path) -> None:
    write(out, "a")
    started = json.loads(settings_path(out).read_text()) | {"apportion": "99.0"}
    settings_path(out).write_text(json.dumps(started))
    with Journal(out, setup_of(base_url="http://localhost:8001/v1")) as journal:
        assert list(journal.ballots) == ["a"]


def test_answers_of_version_0_1_can_be_continued(out: Path) -> None:
    """They have no counts of truncated samples, may have completions, and their settings know no ``give_up``."""
    write(out, "a")
    new = ("truncated", "finish_reasons", "aliases", "checksum")
    old = {key: value for key, value in json.loads(out.read_text()).items() if key not in new}
    out.write_text(json.dumps(old | {"completions": [{"text": "7", "answer": "7", "finish_reason": "stop"}]}) + "\n")
    started = json.loads(settings_path(out).read_text())
    settings_path(out).write_text(json.dumps({key: value for key, value in started.items() if key != "give_up"}))
    assert finished(out) == {"a": make_ballot("a")}
    write(out, "b")
    assert list(finished(out)) == ["a", "b"]


def test_settings_may_change_while_nothing_was_sampled(out: Path) -> None:
    write(out)
    assert not list(out.parent.glob("answers.*json*")), "a run without a sample leaves no file behind"
    other = setup_of(model="n")
    with Journal(out, other) as journal:
        journal.append(make_ballot())
    assert list(finished(out, other)) == ["a"]


def test_answers_without_their_settings_are_refused(out: Path) -> None:
    write(out, "a")
    settings_path(out).unlink()
    with pytest.raises(JournalError, match=r"answers\.run\.json must say"):
        Journal(out, SETUP)


def test_overwriting_removes_earlier_answers(out: Path) -> None:
    write(out, "a")
    with Journal(out, SETUP) as journal:
        journal.keep(make_sample("c"))
    other = setup_of(model="n")
    with Journal(out, other, overwrite=True) as journal:
        assert not journal.ballots and not journal.samples
        journal.append(make_ballot("b"))
    assert list(finished(out, other)) == ["b"] and not samples_path(out).exists()


def test_a_file_of_something_else_is_not_overwritten(out: Path) -> None:
    """The user may have given the questions as ``out`` by mistake."""
    out.write_text('{"prompt": "6 x 7?"}\n')
    with pytest.raises(JournalError, match="must hold answers of apportion vote to be overwritten"):
        Journal(out, SETUP, overwrite=True)
    assert out.read_text() == '{"prompt": "6 x 7?"}\n' and not settings_path(out).exists()


def test_nothing_is_overwritten_by_a_run_that_shall_resume(out: Path) -> None:
    write(out, "a")
    before = out.read_bytes()
    with pytest.raises(JournalError, match="resume must be left out with overwrite"):
        Journal(out, SETUP, overwrite=True, resume=True)
    assert out.read_bytes() == before


def test_a_torn_line_alone_is_overwritten(out: Path) -> None:
    out.write_text('{"id": "a", "ques')
    with Journal(out, SETUP, overwrite=True) as journal:
        assert not journal.ballots
    assert not out.exists()


def test_two_runs_on_one_file_are_refused(out: Path) -> None:
    with Journal(out, SETUP) as journal:
        journal.append(make_ballot("a"))
        with pytest.raises(JournalError, match="one run writes to a file at a time"):
            Journal(out, SETUP, overwrite=True)
    write(out, "b")
    assert list(finished(out)) == ["a", "b"]


def test_a_question_is_written_once(out: Path) -> None:
    with Journal(out, SETUP) as journal:
        journal.append(make_ballot("a"))
        with pytest.raises(JournalError, match="written once"):
            journal.append(make_ballot("a"))


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from apportion.vote.journal import Journal, JournalError
from tests.vote.builders import make_ballot
from tests.vote.test_journal import SETUP
out, room = Path(sys.argv[1]), int(sys.argv[2])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
with Journal(out, SETUP) as journal:
    try:
        journal.append(make_ballot("b"))
    except JournalError as error:
        sys.exit(str(error))
"""


def test_a_full_disk_is_reported_in_one_line_and_the_torn_line_is_cut(out: Path) -> None:
    write(out, "a")
    room = out.stat().st_size + 30
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(out), str(room)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stderr.startswith("an answer cannot be written to"), done.stderr
    assert out.stat().st_size == room
    write(out, "c")
    assert list(finished(out)) == ["a", "c"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [("answers.csv", "written as .jsonl"), ("missing/answers.jsonl", "a folder that exists")],
)
def test_a_path_that_cannot_be_used_is_refused(tmp_path: Path, name: str, problem: str) -> None:
    with pytest.raises(JournalError, match=problem):
        finished(tmp_path / name)
    with pytest.raises(JournalError, match=problem):
        Journal(tmp_path / name, SETUP)


def test_reading_changes_nothing(tmp_path: Path) -> None:
    assert read_finished(tmp_path / "answers.jsonl", SETUP) == VoteRecord() and not list(tmp_path.iterdir())


DAMAGE = {
    "a folder in its place": (lambda out: out.mkdir(), "must be a file, got a folder; remove it"),
    "a named pipe in its place": (lambda out: os.mkfifo(out), "must be a file, got a named pipe; remove it"),
    "a device in its place": (lambda out: out.symlink_to("/dev/full"), "must be a file, got a device; remove it"),
    "a circle of links": (
        lambda out: out.symlink_to(out),
        "must be a file, got an error .* remove what is in its place",
    ),
    "a lock that is a folder": (lambda out: out.with_suffix(".lock").mkdir(), "lock must be a file, got a folder"),
    "a lock that is a pipe": (lambda out: os.mkfifo(out.with_suffix(".lock")), "lock must be a file, got a named pipe"),
    "samples that are a pipe": (lambda out: os.mkfifo(samples_path(out)), "must be a file, got a named pipe"),
    "settings that are a pipe": (lambda out: os.mkfifo(settings_path(out)), "must be a file, got a named pipe"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_what_is_not_a_file_is_refused_and_never_waited_for(out: Path, case: str) -> None:
    damage, problem = DAMAGE[case]
    damage(out)
    for use in (lambda: Journal(out, SETUP), lambda: finished(out)):
        with pytest.raises(JournalError, match=problem) as caught:
            use()
        assert "\n" not in str(caught.value)
    (damaged,) = out.parent.iterdir()
    damaged.rmdir() if damaged.is_dir() else damaged.unlink()  # the remedy
    write(out, "a")
    assert list(finished(out)) == ["a"]


@pytest.mark.parametrize("content", ["[]", "{", "null"])
def test_settings_that_are_no_settings_are_refused(out: Path, content: str) -> None:
    write(out, "a")
    settings_path(out).write_text(content)
    with pytest.raises(JournalError, match=r"answers\.run\.json must say under which settings, got none; restore it"):
        Journal(out, SETUP)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """No file can be made in /proc, not even by root."""
    if not Path("/proc/self").is_dir():
        pytest.skip("there is no /proc")
    with pytest.raises(
        JournalError, match=r"answers cannot be written to /proc/self/answers\.jsonl .*; change the path"
    ):
        Journal(Path("/proc/self/answers.jsonl"), SETUP)


def keep(path: Path, *samples: Sample, setup: Setup = SETUP) -> None:
    with Journal(path, setup) as journal:
        for sample in samples:
            journal.keep(sample)


def test_samples_of_an_open_question_can_be_read_back(out: Path) -> None:
    """Those that failed are left out, because they are requested again."""
    samples = [
        make_sample("a", 0),
        make_sample("a", 2),
        make_sample("b", 0),
        make_sample("a", 1, text=None, error="500"),
    ]
    keep(out, *samples)
    found = read_finished(out, SETUP).samples
    assert {id: list(mine) for id, mine in found.items()} == {"a": [0, 2], "b": [0]}
    assert found["a"][2] == samples[1].without_text()
    keep(out, make_sample("a", 1))
    assert sorted(read_finished(out, SETUP).samples["a"]) == [0, 1, 2]


def test_a_sample_that_is_there_twice_is_refused(out: Path) -> None:
    keep(out, make_sample("a", 0))
    line = samples_path(out).read_text()
    samples_path(out).write_text(line + line)
    with pytest.raises(JournalError, match="must hold a sample once, got 0 of 'a' again in line 2; remove it"):
        Journal(out, SETUP)


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_a_torn_last_sample_is_cut(out: Path, kept: int) -> None:
    keep(out, make_sample("a", 0), make_sample("a", 1))
    whole = samples_path(out).read_bytes()
    first = whole.index(b"\n") + 1
    samples_path(out).write_bytes(whole[: first + kept] if kept > 0 else whole[:-2])
    keep(out, make_sample("a", 1))
    assert samples_path(out).read_bytes() == whole


@pytest.mark.parametrize("changes", [{"text": 7}, {"number": -1}, {"tokens": -5}, {"answer": 7}, {"more": 1}])
def test_a_line_that_is_no_sample_is_refused(out: Path, changes: dict[str, Any]) -> None:
    keep(out, make_sample("a", 0))
    line = json.loads(samples_path(out).read_text()) | changes
    del line["checksum"]
    samples_path(out).write_text(json.dumps(line) + "\n")
    with pytest.raises(JournalError, match="must hold samples of apportion vote, got something else in line 1"):
        Journal(out, SETUP)


def test_samples_are_counted_again_only_if_the_run_says_so(out: Path) -> None:
    with Journal(out, SETUP) as journal:
        for number in range(5):
            journal.keep(make_sample("a", number))
        journal.append(make_ballot("a", texts=1, completion_tokens=25))
    other = setup_of(rule="esc", rule_settings={})
    before = out.read_bytes()
    with pytest.raises(
        JournalError, match=r"started with rule = 'optpo', got 'esc', .*; resume to count its samples again"
    ):
        Journal(out, other)
    assert out.read_bytes() == before
    with Journal(out, other, resume=True) as journal:
        assert not journal.ballots and sorted(journal.samples["a"]) == [0, 1, 2, 3, 4]
        journal.append(make_ballot("a", stopped="max_samples"))
    assert finished(out, other)["a"].stopped == "max_samples"


def test_ballots_without_their_samples_are_not_given_up(out: Path) -> None:
    write(out, "a")
    before = out.read_bytes()
    with pytest.raises(JournalError, match="must hold the samples of every question to count them again, got 0 of 5"):
        Journal(out, setup_of(rule="esc", rule_settings={}), resume=True)
    assert out.read_bytes() == before


@pytest.mark.parametrize("changes", [{"question_hash": "9"}, {"text": "Another \\boxed{7}."}, {"tokens": 6}])
def test_samples_of_another_run_beside_the_answers_are_refused(out: Path, changes: dict[str, Any]) -> None:
    texts = [f"{number} \\boxed{{7}}." for number in (0, 0, 1, 2, 3)]
    with Journal(out, SETUP) as journal:
        for number, text in enumerate(texts):
            journal.keep(make_sample("a", number, text=text, tokens=5))
        journal.append(make_ballot("a", completion_tokens=25))
    assert read_recorded(out).samples["a"].keys() == set(range(5))
    samples_path(out).unlink()
    for number, text in enumerate(texts):
        sample = make_sample("a", number, text=changes.get("text", text), tokens=5)
        own = {name: value for name, value in changes.items() if name != "text"}
        append_line(samples_path(out), replace(sample, **own).to_json())
    for read in (lambda: read_recorded(out), lambda: Journal(out, setup_of(max_samples=32), resume=True)):
        with pytest.raises(
            JournalError, match=r"must hold the samples that answers\.jsonl counted, got others for 'a'"
        ):
            read()


def append_line(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def test_a_renewed_key_in_the_body_does_not_end_a_vote(out: Path) -> None:
    old, new = (setup_of(extra_body={"top_k": 20, "api_key": key}) for key in ("first-key", "second-key"))
    with Journal(out, old) as journal:
        journal.append(make_ballot("a"))
    assert finished(out, new).keys() == {"a"}
    with pytest.raises(JournalError, match=r"started with extra_body\.top_k = 20, got 30"):
        finished(out, setup_of(extra_body={"top_k": 30, "api_key": "second-key"}))


def test_another_extraction_reads_the_texts_again_and_needs_them(out: Path) -> None:
    keep(out, make_sample("a", 0, text="It is 7 of 12", answer=None))
    other = setup_of(extract="last_number")
    assert read_finished(out, other).samples["a"][0].answer == "12"
    keep(out, make_sample("a", 1).without_text())
    with pytest.raises(JournalError, match="must hold the texts to read other answers in them, got none in line 2"):
        Journal(out, other)


def test_files_of_a_run_that_kept_nothing_do_not_hinder_the_next_one(out: Path) -> None:
    """A kill between the making of the files and that of the settings leaves empty files."""
    samples_path(out).touch()
    out.touch()
    with Journal(out, SETUP) as journal:
        assert not journal.ballots and not journal.samples


def test_an_error_while_settings_are_written_is_one_line_on_a_disk_that_refuses_all_changes(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("apportion.vote.journal.write_whole", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(JournalError, match="settings cannot be written"):
        Journal(out, SETUP)
