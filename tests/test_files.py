"""Files are written whole, or the old one stays."""

import os
import subprocess
import sys

import pytest

from apportion.files import alone, write_whole


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


def test_one_process_at_a_time_is_let_in(tmp_path):
    lock = str(tmp_path / "lock")
    code = f"from pathlib import Path\nfrom apportion.files import alone\nwith alone(Path({lock!r})): pass"
    with alone(tmp_path / "lock"):
        refused = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "BlockingIOError" in refused.stderr
    subprocess.run([sys.executable, "-c", code], check=True)
