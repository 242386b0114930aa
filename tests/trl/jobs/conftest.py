"""A working directory with the questions and the verifier of small jobs, and one that ran to its end."""

import os
from pathlib import Path

import pytest

from tests.trl.jobs.small import HELD_OUT, make_files, make_job, train


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_files(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def whole(policy, tmp_path_factory):
    """The folder of a job that nothing disturbed."""
    folder, before = tmp_path_factory.mktemp("whole"), Path.cwd()
    make_files(folder)
    os.chdir(folder)
    try:
        assert train(make_job(folder, policy, evaluation=HELD_OUT)) == 0
    finally:
        os.chdir(before)
    return folder / "runs" / "job"
