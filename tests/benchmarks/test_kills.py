"""Tests of the benchmarks of killed studies and votes and of full disks, each by a small run."""

import errno
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("trl") is None or not hasattr(os, "fork"):
    pytest.skip("needs trl and Linux", allow_module_level=True)

from benchmarks.full_disk import Run, fail_from, tried
from benchmarks.hostile_input import run_forked
from benchmarks.kills import FAULTS, Kill, rows
from tests.benchmarks.small_runs import cells_of, small_run


def test_a_kill_with_anything_wrong_is_not_survived():
    found = [Kill(FAULTS[0], -9, 0.2), Kill(FAULTS[0], -9, 6.0, ["a process lived 6.0 s"])]
    assert rows(found) == [
        ["SIGKILL to the parent", "2", "1", "3.1", "6.0"],
        ["all", "2", "1", "3.1", "6.0"],
    ]
    assert {number for fault in FAULTS for _, number in fault.signals} == {
        signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP,
    }  # fmt: skip


def writes_two_files():
    for name in ("first", "second"):
        try:
            Path(name).write_text("content")
        except OSError:
            sys.exit(1)


def test_every_write_fails_once(tmp_path):
    run = Run("two files", {}, writes_two_files, lambda folder: (folder / "second").read_text(), (0, 3, 100))
    found = tried(run, tmp_path, 10)
    assert [(fault.kind, fault.at) for fault in found] == [
        ("no space left", 1), ("no space left", 2), ("read-only", 1), ("read-only", 2), ("files too large", 0),
        ("files too large", 3),
    ]  # fmt: skip
    assert not any(fault.wrong for fault in found)


def test_a_run_that_forgets_what_failed_is_found(tmp_path):
    def act():
        if not Path("first").exists():
            writes_two_files()

    [fault] = tried(Run("forgets", {}, act, lambda folder: (folder / "second").exists(), (3,)), tmp_path, 0)
    assert "another result" in fault.wrong[0]


def test_only_changes_below_the_folder_fail(tmp_path):
    work = tmp_path / "work"

    def act():
        fail_from(1, errno.ENOSPC, work)
        (tmp_path / "elsewhere").write_text((work / "read").read_text())
        (work / "file").write_text("")

    found = run_forked(act, {"read": b"content"}, tmp_path)
    assert "No space left on device" in found.err.splitlines()[-1] and not (work / "file").exists()
    assert (tmp_path / "elsewhere").read_text() == "content"


@pytest.mark.soak  # tests/lab and tests/vote kill studies and votes, too
@pytest.mark.slow
@pytest.mark.xdist_group("commands")
def test_a_study_and_a_vote_survive_two_kills_each(tmp_path):
    small_run("-m", "benchmarks.kills", "--kills", "2", "--rollouts", "3200", "--results", tmp_path)
    for name in ("kills", "vote_kills"):
        found = cells_of(tmp_path, name)["kills"]
        assert len(found) == 2
        for kill in found:  # how long a process lives depends on the machine
            assert [wrong for wrong in kill["wrong"] if "lived" not in wrong] == []
