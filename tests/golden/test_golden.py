"""The golden record: the code decides and says what is recorded, and the comparison shows what does not."""

import copy
import logging

import pytest

from tests.golden.compare import differences, report
from tests.golden.parts import PARTS, file_of, kept, now

MOST_BYTES = 2 * 2**20


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_what_the_library_decides_and_says_is_what_is_recorded(part):
    found = report(part, kept(part), now(part))
    assert not found, f"{found}\nif you meant it: python -m tests.golden --write {part}, and say why in the commit"


def test_the_record_is_small():
    assert sum(file_of(part).stat().st_size for part in PARTS) <= MOST_BYTES


def test_each_kind_of_difference_is_reported_with_its_path():
    record = {"a": {"counts": [8, 8], "rate": 0.5, "name": "vip", "gone": 1, "missing": float("nan")}, "b": True}
    assert not list(differences(record, copy.deepcopy(record)))
    assert not list(differences({"rate": 0.5}, {"rate": 0.5 * (1 + 5e-10)}))
    changed = {"a": {"counts": [8, 9], "rate": 0.5 * (1 + 1e-8), "name": "vop", "new": 1, "missing": 0.0}, "b": 1}
    assert sorted(differences(record, changed)) == [
        "a / counts[1]: was 8, is 9",
        "a / gone: is gone",
        "a / missing: was nan, is 0.0",
        "a / name: was 'vip', is 'vop'",
        "a / new: is new",
        "a / rate: was 0.5, is 0.500000005",
        "b: was True, is 1",
    ]
    assert list(differences({"text": "one\ntwo\nthree"}, {"text": "one\n2\nthree"})) == [
        "text:     @@ -2 +2 @@\n    -two\n    +2"
    ]
    assert list(differences([1, 2], [1])) == [": had 2 entries, has 1"]
    assert "... and 5 more" in report("part", list(range(25)), list(range(1, 26)))
