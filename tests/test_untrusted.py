from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apportion.untrusted import CONFIG_BYTES, ERROR, MAX_DEPTH, QUOTED, check_file, one_line, parse_json, shown


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def link_to(device: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(device)


def make_sparse(path: Path) -> None:
    """Make a file of 10 GB that takes no room."""
    with path.open("wb") as file:
        file.truncate(10 * 2**30)


ENDLESS = {
    "pipe": make_pipe,
    "zero": link_to("/dev/zero"),
    "full": link_to("/dev/full"),
    "directory": Path.mkdir,
}
"""Things that are no files: a test that opens one would not end."""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 5000 + "]" * 5000, "levels of nesting"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "levels of nesting"),
        ("9" * 5000, "an integer of thousands of digits"),
        ('{"a": 1, "b": 2, "a": 3}', "the key 'a' twice"),
        (r'{"a": "\ud800"}', "half of a surrogate pair"),
        (r'"\udFFF"', "half of a surrogate pair"),
        ("\x00", "Expecting value"),
        ("", "Expecting value"),
        (b"\xff\xff", "codec can't decode"),
    ],
)
def test_json_that_cannot_be_used_is_one_value_error(text: str | bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_json(text)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_has_not_are_refused(word: str) -> None:
    with pytest.raises(ValueError, match=f"{word}, which is not JSON"):
        parse_json(f'{{"a": [{word}]}}')


def test_ordinary_json_is_read_as_ever() -> None:
    deepest = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert parse_json(deepest) == nested(MAX_DEPTH)
    assert parse_json(r'{"a": "\ud83d\ude00", "b": [1, 2.5, null]}') == {"a": "😀", "b": [1, 2.5, None]}


LARGE = {
    "text": "x" * 10**6,
    "deep": nested(900),
    "integer": 10**5000,
    "list": [10**5000] * 10**5,
    "key": {"a" * 10**6: 1},
    "escapes": "\x1b[31m" * 99,
}


@pytest.mark.parametrize("value", LARGE.values(), ids=LARGE)
def test_a_quoted_value_is_one_short_line(value: Any) -> None:
    assert len(shown(value)) <= QUOTED and shown(value).isprintable()


def test_an_error_line_is_bounded_and_keeps_its_remedy() -> None:
    line = one_line("a key\n" + "\x1b[31m" * 10**5 + "; remove it")
    assert line.isprintable() and len(line) <= 5 * ERROR
    assert line.startswith("a key ") and line.endswith("; remove it")


@pytest.mark.parametrize("make", [*ENDLESS.values(), make_sparse], ids=[*ENDLESS, "sparse"])
def test_what_is_no_file_or_too_long_is_refused_before_it_is_read(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "a")
    with pytest.raises(OSError, match=r"it is a|10,737,418,240 bytes"):
        check_file(tmp_path / "a", CONFIG_BYTES)
