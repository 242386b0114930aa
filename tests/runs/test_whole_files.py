"""A file is written whole, or the old one stays."""

import os
from uuid import UUID

import pytest

from apportion.runs import whole_files
from apportion.runs.whole_files import is_file, remove_unfinished, write_whole


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


def test_two_processes_may_write_one_file_at_the_same_time(tmp_path, monkeypatch):
    """The second begins before the first has finished."""
    path = tmp_path / "a.json"

    def write_second(number):
        monkeypatch.undo()
        write_whole(path, "second")
        assert path.read_text() == "second"

    monkeypatch.setattr(os, "fsync", write_second)
    write_whole(path, "first")
    assert path.read_text() == "first" and [*tmp_path.iterdir()] == [path]


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(tmp_path):
    path, elsewhere = tmp_path / "a.json", tmp_path / "elsewhere"
    elsewhere.write_text("precious")
    path.symlink_to(elsewhere)
    write_whole(path, "new")
    assert not path.is_symlink() and path.read_text() == "new" and elsewhere.read_text() == "precious"


def test_a_link_in_the_place_of_the_unfinished_file_is_not_followed(tmp_path, monkeypatch):
    path, elsewhere = tmp_path / "a.json", tmp_path / "elsewhere"
    elsewhere.write_text("precious")
    known = UUID(int=7)
    monkeypatch.setattr(whole_files, "uuid4", lambda: known)
    planted = tmp_path / f".a.json.{known.hex}.unfinished"
    planted.symlink_to(elsewhere)
    with pytest.raises(FileExistsError):
        write_whole(path, "new")
    assert elsewhere.read_text() == "precious" and planted.is_symlink() and not path.exists()


def test_a_whole_file_has_the_rights_that_the_user_gives_to_new_files(tmp_path):
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "a.json", "new")
    finally:
        os.umask(before)
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o640


def test_what_killed_writers_left_can_be_removed(tmp_path):
    (tmp_path / ".a.json.0123.unfinished").write_text("half")
    (tmp_path / "a.json").write_text("whole")
    remove_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda path: path.mkdir(), "got a folder; remove it"),
        (os.mkfifo, "got a named pipe; remove it"),
        (lambda path: path.symlink_to("/dev/full"), "got a device; remove it"),
        (lambda path: path.symlink_to(path), "got an error .*; remove what is in its place"),
    ],
)
def test_what_is_not_a_file_is_named(tmp_path, make, found):
    path = tmp_path / "a.json"
    assert not is_file(path)
    make(path)
    with pytest.raises(ValueError, match=rf"a\.json must be a file, {found}"):
        is_file(path)


def test_below_a_file_there_is_no_file(tmp_path):
    (tmp_path / "a").write_text("")
    assert is_file(tmp_path / "a")
    with pytest.raises(ValueError, match=r"must be a file, got an error .Not a directory"):
        is_file(tmp_path / "a" / "b")
