"""Kinds of faults in a run of verl in one process: a run survives each with the right rows, or ends with its cause.

``python -m benchmarks.verl_fault_table`` writes what this finds as a table.
"""

import pytest

from tests.soak import case
from tests.verl.fault_random import random_run
from tests.verl.fault_table import KINDS, MOMENTS, tried

IN_SUITE = (
    "a reward raises",
    "a reward is NaN",
    "a reward never comes",
    "a reward worker stops",
    "rewards raise from now on",
    "a request never ends",
    "a server stops when it is put to sleep",
    "a response of None",
    "weights are never loaded",
    "a worker dies within a commit",
    "a worker dies in a validation",
    "a worker stops",
    "a worker stops in a validation",
    "a worker answers for others",
    "workers die at each write",
    "both workers die",
    "both workers die for good",
    "tasks are lost in the network",
    "rows are lost in the network",
    "a commit fails at the status",
    "a commit never ends",
    "TransferQueue's storage stops",
    "the disk is full at the second file",
    "the machine sleeps for half an hour",
)
"""Kinds of which the suite tries one moment. ``make soak`` tries all kinds at all moments."""

CASES = [
    case(kind, moment, suite=kind.name in IN_SUITE and i == n % len(MOMENTS), id=f"{kind.name}, moment {i}")
    for n, kind in enumerate(KINDS)
    for i, moment in enumerate(MOMENTS)
]


@pytest.mark.parametrize(("kind", "moment"), CASES)
def test_a_fault_is_survived_with_the_right_rows_or_ends_the_run_with_its_cause(assets, kind, moment):
    found = tried(kind, moment, assets)
    assert found.struck and found.right, found


def test_kinds_are_told_apart_by_their_names():
    assert len({kind.name for kind in KINDS}) == len(KINDS) >= 60
    assert {*IN_SUITE} <= {kind.name for kind in KINDS}


@pytest.mark.parametrize(
    ("steps", "seed"), [case(10, 0, suite=True), case(200, 0, suite=False), case(200, 1, suite=False)]
)
def test_a_run_survives_faults_at_random_moments_without_an_operator(assets, steps, seed):
    found = random_run(assets, steps, seed)
    assert not found.last and not found.wrong and found.steps == steps and found.faults, found
    assert found.rollouts == found.budget
