"""Tests of the benchmarks of killed studies and votes and of full disks, each by a small run."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("trl") is None or not hasattr(os, "fork"):
    pytest.skip("needs trl and Linux", allow_module_level=True)

from benchmarks.full_disk import Run, tried
from tests.benchmarks.small_runs import cells_of, small_run


def writes_two_files():
    for name in ("first", "second"):
        try:
            Path(name).write_text("content")
        except OSError:
            sys.exit(1)


def test_every_write_fails_once(tmp_path):
    run = Run("two files", {}, writes_two_files, lambda folder: (folder / "second").read_text(), (0, 3, 100))
    found = tried(run, tmp_path, 10)
    said = "no space left 1, no space left 2, read-only 1, read-only 2, files too large 0, files too large 3"
    assert ", ".join(f"{fault.kind} {fault.at}" for fault in found) == said
    assert not any(fault.wrong for fault in found)


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
