"""Tests of the benchmark of faults in verl: its table, how it tells outcomes apart, and what it calls a wrong row."""

import os
from importlib.util import find_spec

import pytest

if find_spec("verl") is None or not hasattr(os, "pidfd_open"):
    pytest.skip("needs verl and Linux", allow_module_level=True)

from benchmarks.verl_faults import COLUMNS, FATAL, RECOVERED, Struck, outcome_of, rows, unsound

KILL, STOP = RECOVERED[0].name, RECOVERED[1].name


def test_the_table_has_a_row_for_each_fault_and_one_for_all():
    found = [
        Struck(KILL, "went on", 3.0, True),
        Struck(FATAL[0].name, "ended", 9.0, True),
        Struck(KILL, "went on", 5.0, True, ["step 3 has a row twice"]),
        Struck(STOP, "hung", 300.0, False),
        Struck(STOP, "ended otherwise", 20.0, False),
    ]
    assert rows(found) == [
        [KILL, "2", "2", "0", "0", "0", "4.0", "5.0", "1"],
        [STOP, "2", "0", "0", "1", "1", "160.0", "300.0", "0"],
        [FATAL[0].name, "1", "0", "1", "0", "0", "9.0", "9.0", "1"],
        ["all", "5", "2", "1", "1", "1", "9.0", "300.0", "2"],
    ]
    assert {len(row) for row in rows(found)} == {len(COLUMNS)}


@pytest.mark.parametrize(
    ("fault", "status", "output", "stepped", "outcome"),
    [
        (RECOVERED[0], None, "", True, "went on"),
        (RECOVERED[0], None, "", False, "hung"),
        (RECOVERED[0], 1, "some error", True, "ended otherwise"),
        (FATAL[1], 1, "agent-loop workers must live, got none of 2; see", False, "ended"),
        (FATAL[1], 1, "another error", False, "ended otherwise"),
        (FATAL[1], 0, "agent-loop workers must live, got none of 2; see", False, "ended otherwise"),
        (FATAL[1], None, "", True, "hung"),
    ],
)
def test_outcomes(fault, status, output, stepped, outcome):
    assert outcome_of(fault, status, output, stepped) == outcome


def row(index, position, reward=1.0, key=None):
    group = {"group": f"g{index}", "position": position, "rewards": (1.0, 0.0)}
    key = key or f"u{index}_{position}_0"
    return {"index": index, "key": key, "rm_scores": [0.0, reward], "padding": False, "apportion": group}


def test_wrong_rows_are_found():
    sound = [row(4, 0), row(4, 1, 0.0), row(5, 0), {"padding": True}]
    assert unsound(sound, step=2) == []
    assert unsound(sound, step=1) == ["step 1 trains on prompt 4", "step 1 trains on prompt 5"]
    assert unsound([*sound, row(4, 0)], step=2) == [
        "step 2 has a row twice", "step 2 has two rows at one position of a group",
    ]  # fmt: skip
    assert unsound([row(4, 0, 0.0)], step=2) == ["step 2 has a row of another reward than its group's"]
