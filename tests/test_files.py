"""Files are written whole, or the old one stays."""

import os

import pytest

from apportion.files import write_whole


@pytest.mark.parametrize("content", ["ü\n", "ü\n".encode(), memoryview("ü\n".encode())])
def test_what_is_written_replaces_the_file_and_leaves_nothing_beside_it(tmp_path, content):
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
    assert path.read_text() == "old"
