"""A working directory with the questions and the verifier of small jobs."""

import pytest

from tests.trl.jobs.small import make_files


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_files(tmp_path)
    return tmp_path
