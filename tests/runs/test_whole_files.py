"""A file is written whole, or the old one stays."""

import os

import pytest

from apportion.runs.whole_files import write_whole, write_whole_by


@pytest.mark.parametrize("content", ["ü\n", "ü\n".encode(), memoryview("ü\n".encode())])
def test_a_whole_file_replaces_the_old_one_and_leaves_nothing_beside_it(tmp_path, content):
    path = tmp_path / "a.json"
    path.write_text("old, and longer")
    write_whole(path, content)
    assert path.read_bytes() == "ü\n".encode() and [*tmp_path.iterdir()] == [path]


def test_a_disk_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text("old")

    def full(number):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old" and [*tmp_path.iterdir()] == [path]


def test_two_processes_may_write_one_file_at_the_same_time(tmp_path):
    """The second begins before the first has finished."""
    path = tmp_path / "a.json"

    def write(file):
        file.write(b"first")
        write_whole(path, "second")
        assert path.read_text() == "second"

    write_whole_by(path, write)
    assert path.read_text() == "first" and [*tmp_path.iterdir()] == [path]
