"""Tests of the benchmarks of killed studies and full disks, each by a small run."""

import errno
import os
import signal
import sys
from importlib.util import find_spec

import pytest

if find_spec("verl") is None or not hasattr(os, "pidfd_open"):
    pytest.skip("needs verl and Linux", allow_module_level=True)

from benchmarks.full_disk import Run, _fail_from, _try_all
from benchmarks.hostile_forks import run_forked
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


def writes_two_files(folder):
    for name in ("first", "second"):
        try:
            (folder / name).write_text("content")
        except OSError as error:
            sys.exit(f"error: {error}")


def test_every_write_fails_once(tmp_path):
    run = Run("two files", {}, writes_two_files, lambda folder: (folder / "second").read_text(), (0, 3, 100))
    found = _try_all(run, tmp_path, 10)
    assert [(fault.kind, fault.at, fault.equal) for fault in found] == [
        ("no space left", 1, True), ("no space left", 2, True), ("read-only", 1, True), ("read-only", 2, True),
        ("files too large", 0, True), ("files too large", 3, True),
    ]  # fmt: skip
    assert not any(fault.wrong for fault in found if fault.at)


def test_only_changes_below_the_folder_fail(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    (work / "read").write_text("content")

    def act():
        _fail_from(1, errno.ENOSPC, work)
        (tmp_path / "elsewhere").write_text((work / "read").read_text())
        (work / "file").write_text("")

    found = run_forked(act, work, {})
    assert "No space left on device" in found.err.splitlines()[-1] and not (work / "file").exists()
    assert (tmp_path / "elsewhere").read_text() == "content"


@pytest.mark.soak  # tests/lab kills studies, too
@pytest.mark.slow
@pytest.mark.xdist_group("commands")
def test_a_study_survives_two_kills(tmp_path):
    small_run("-m", "benchmarks.kills", "--parts", "kills", "--kills", "2", "--rollouts", "3200", "--results", tmp_path)
    found = cells_of(tmp_path, "kills")["kills"]
    assert len(found) == 2
    for kill in found:  # how long a process lives depends on the machine
        assert [wrong for wrong in kill["wrong"] if "lived" not in wrong] == []
