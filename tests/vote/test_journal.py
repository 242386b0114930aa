from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.vote import Ballot
from apportion.vote.journal import Journal, JournalError, read_finished, settings_path
from tests.vote.builders import make_ballot

ROOT = Path(__file__).parents[2]
SETTINGS: dict[str, Any] = {"model": "m", "rule": "optpo", "rule.alpha": 0.05, "extra_body": {"top_k": 20}}


def write(path: Path, *ids: str) -> None:
    with Journal(path, SETTINGS) as journal:
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
    with Journal(out, SETTINGS) as journal:
        for ballot in ballots:
            journal.append(ballot)
            assert read_finished(out, SETTINGS)[ballot.id] == ballot  # on disk already
    with Journal(out, SETTINGS) as journal:
        assert list(journal.ballots.values()) == ballots
    assert json.loads(settings_path(out).read_text()) == SETTINGS


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
    out.write_text(json.dumps(record) + "\n")
    with pytest.raises(JournalError, match="must hold answers of apportion vote, got something else in line 1"):
        read_finished(out, SETTINGS)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
def test_answers_in_another_encoding_are_refused(out: Path, encoding: str) -> None:
    """json.loads would guess the encoding of each line."""
    write(out, "a")
    out.write_bytes(out.read_text().encode(encoding))
    with pytest.raises(JournalError, match="must hold answers of apportion vote, got something else in line 1"):
        read_finished(out, SETTINGS)


@given(text=st.text(), answer=st.text())
def test_any_text_is_one_line(text: str, answer: str) -> None:
    ballot = make_ballot(text, answer=answer, votes={answer: 4}, completions=({"text": text},))
    line = ballot.to_json()
    assert "\n" not in line and json.loads(line)["completions"] == [{"text": text}]
    assert Ballot.from_json(line) == make_ballot(text, answer=answer, votes={answer: 4})


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_a_torn_last_line_is_cut(out: Path, kept: int) -> None:
    write(out, "a", "b")
    whole = out.read_bytes()
    first = whole.index(b"\n") + 1
    out.write_bytes(whole[: first + kept] if kept > 0 else whole[:-2])
    assert list(read_finished(out, SETTINGS)) == ["a"]
    write(out, "c")
    assert out.read_bytes().startswith(whole[:first]) and list(read_finished(out, SETTINGS)) == ["a", "c"]


def test_a_last_line_without_a_line_break_is_kept(out: Path) -> None:
    write(out, "a", "b")
    out.write_bytes(out.read_bytes()[:-1])
    write(out, "c")
    assert list(read_finished(out, SETTINGS)) == ["a", "b", "c"]


@pytest.mark.parametrize("line", ["{}", "[1]", "null", '{"id": "a"}', "text", make_ballot("a").to_json()])
def test_a_line_that_is_no_new_answer_is_refused(out: Path, line: str) -> None:
    write(out, "a", "b")
    with out.open("a") as file:
        file.write(f"{line}\n")
    before = out.read_bytes()
    with pytest.raises(JournalError, match="line 3"):
        Journal(out, SETTINGS)
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rule.alpha": 0.01}, "started with rule.alpha = 0.05, got 0.01"),
        ({"model": "n", "rule": "esc"}, "started with model = 'm', got 'n', and 1 more"),
        ({"new": 1}, "started with new = nothing, got 1"),
        ({"extra_body": {}}, "started with extra_body.top_k = 20, got nothing"),
    ],
)
def test_other_settings_are_refused_by_name(out: Path, changes: dict[str, Any], problem: str) -> None:
    write(out, "a")
    with pytest.raises(JournalError, match=problem):
        Journal(out, SETTINGS | changes)
    write(out, "b")
    assert list(read_finished(out, SETTINGS)) == ["a", "b"]


@pytest.mark.parametrize("changes", [{"base_url": "http://localhost:8001/v1"}, {"apportion": "99.0"}])
def test_the_address_and_the_version_may_change(out: Path, changes: dict[str, Any]) -> None:
    settings = SETTINGS | {"base_url": "http://localhost:8000/v1", "apportion": "0.1.0"}
    with Journal(out, settings) as journal:
        journal.append(make_ballot("a"))
    with Journal(out, settings | changes) as journal:
        assert list(journal.ballots) == ["a"]


def test_settings_may_change_while_no_question_is_finished(out: Path) -> None:
    write(out)
    with Journal(out, {"model": "n"}) as journal:
        journal.append(make_ballot())
    assert list(read_finished(out, {"model": "n"})) == ["a"]


def test_answers_without_their_settings_are_refused(out: Path) -> None:
    write(out, "a")
    settings_path(out).unlink()
    with pytest.raises(JournalError, match=r"answers\.run\.json must say"):
        Journal(out, SETTINGS)


def test_overwriting_removes_earlier_answers(out: Path) -> None:
    write(out, "a")
    with Journal(out, {"model": "n"}, overwrite=True) as journal:
        assert not journal.ballots
        journal.append(make_ballot("b"))
    assert list(read_finished(out, {"model": "n"})) == ["b"]


def test_a_file_of_something_else_is_not_overwritten(out: Path) -> None:
    """The user may have given the questions as ``out`` by mistake."""
    out.write_text('{"prompt": "6 x 7?"}\n')
    with pytest.raises(JournalError, match="must hold answers of apportion vote to be overwritten"):
        Journal(out, SETTINGS, overwrite=True)
    assert out.read_text() == '{"prompt": "6 x 7?"}\n' and not settings_path(out).exists()


def test_a_torn_line_alone_is_overwritten(out: Path) -> None:
    out.write_text('{"id": "a", "ques')
    with Journal(out, SETTINGS, overwrite=True) as journal:
        assert not journal.ballots
    assert out.read_bytes() == b""


def test_two_runs_on_one_file_are_refused(out: Path) -> None:
    with Journal(out, SETTINGS) as journal:
        journal.append(make_ballot("a"))
        with pytest.raises(JournalError, match="one run writes to a file at a time"):
            Journal(out, SETTINGS, overwrite=True)
    write(out, "b")
    assert list(read_finished(out, SETTINGS)) == ["a", "b"]


def test_a_question_is_written_once(out: Path) -> None:
    with Journal(out, SETTINGS) as journal:
        journal.append(make_ballot("a"))
        with pytest.raises(JournalError, match="written once"):
            journal.append(make_ballot("a"))


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from apportion.vote.journal import Journal, JournalError
from tests.vote.builders import make_ballot
from tests.vote.test_journal import SETTINGS
out, room = Path(sys.argv[1]), int(sys.argv[2])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
with Journal(out, SETTINGS) as journal:
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
    assert list(read_finished(out, SETTINGS)) == ["a", "c"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [("answers.csv", "written as .jsonl"), ("missing/answers.jsonl", "a folder that exists")],
)
def test_a_path_that_cannot_be_used_is_refused(tmp_path: Path, name: str, problem: str) -> None:
    with pytest.raises(JournalError, match=problem):
        read_finished(tmp_path / name, SETTINGS)
    with pytest.raises(JournalError, match=problem):
        Journal(tmp_path / name, SETTINGS)


def test_reading_changes_nothing(tmp_path: Path) -> None:
    assert read_finished(tmp_path / "answers.jsonl", SETTINGS) == {} and not list(tmp_path.iterdir())


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
    "settings that are a pipe": (lambda out: os.mkfifo(settings_path(out)), "must be a file, got a named pipe"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_what_is_not_a_file_is_refused_and_never_waited_for(out: Path, case: str) -> None:
    damage, problem = DAMAGE[case]
    damage(out)
    for use in (lambda: Journal(out, SETTINGS), lambda: read_finished(out, SETTINGS)):
        with pytest.raises(JournalError, match=problem) as caught:
            use()
        assert "\n" not in str(caught.value)
    (damaged,) = out.parent.iterdir()
    damaged.rmdir() if damaged.is_dir() else damaged.unlink()  # the remedy
    write(out, "a")
    assert list(read_finished(out, SETTINGS)) == ["a"]


@pytest.mark.parametrize("content", ["[]", "{", "null"])
def test_settings_that_are_no_settings_are_refused(out: Path, content: str) -> None:
    write(out, "a")
    settings_path(out).write_text(content)
    with pytest.raises(JournalError, match=r"answers\.run\.json must say under which settings, got none; restore it"):
        Journal(out, SETTINGS)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """No file can be made in /proc, not even by root."""
    if not Path("/proc/self").is_dir():
        pytest.skip("there is no /proc")
    with pytest.raises(
        JournalError, match=r"answers cannot be written to /proc/self/answers\.jsonl .*; change the path"
    ):
        Journal(Path("/proc/self/answers.jsonl"), SETTINGS)
