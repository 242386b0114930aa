import os
from pathlib import Path

import pytest

from apportion.untrusted import CONFIG_BYTES, ERROR, MAX_DEPTH, QUOTED, check_file, one_line, parse_json, shown
from tests.cases import check_refused


def nested(depth):
    value = []
    for _ in range(depth - 1):
        value = [value]
    return value


def link_to(device):
    return lambda path: path.symlink_to(device)


def make_sparse(path):
    """Make a file of 10 GB that takes no room."""
    with path.open("wb") as file:
        file.truncate(10 * 2**30)


ENDLESS = {"pipe": os.mkfifo, "zero": link_to("/dev/zero"), "full": link_to("/dev/full"), "directory": Path.mkdir}
"""Things that are no files: a test that opens one would not end."""


def test_json_that_cannot_be_used_is_one_value_error():
    cases = [
        ("[" * 5000 + "]" * 5000, "levels of nesting"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "levels of nesting"),
        ("9" * 5000, "an integer of thousands of digits"),
        ('{"a": 1, "b": 2, "a": 3}', "the key 'a' twice"),
        (r'{"a": "\ud800"}', "half of a surrogate pair"),
        (r'"\udFFF"', "half of a surrogate pair"),
        ("\x00", "Expecting value"),
        ("", "Expecting value"),
        (b"\xff\xff", "codec can't decode"),
        (b'"\xed\xa0\x80"', "half of a surrogate pair"),
        *((f'{{"a": [{word}]}}', f"{word}, which is not JSON") for word in ("NaN", "Infinity", "-Infinity")),
    ]
    check_refused(ValueError, parse_json, cases)


def test_ordinary_json_is_read_as_ever():
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


def test_a_quoted_value_is_one_short_line():
    for name, value in LARGE.items():
        assert len(shown(value)) <= QUOTED and shown(value).isprintable(), name


def test_an_error_line_is_bounded_and_keeps_its_remedy():
    line = one_line("a key\n" + "\x1b[31m" * 10**5 + "; remove it")
    assert line.isprintable() and len(line) <= 5 * ERROR
    assert line.startswith("a key ") and line.endswith("; remove it")


def test_what_is_no_file_or_too_long_is_refused_before_it_is_read(tmp_path):
    for name, make in {**ENDLESS, "sparse": make_sparse}.items():
        make(tmp_path / name)
        with pytest.raises(OSError, match=r"it is a|10,737,418,240 bytes"):
            check_file(tmp_path / name, CONFIG_BYTES)
