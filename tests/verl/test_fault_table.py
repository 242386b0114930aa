"""Kinds of faults in a run of verl in one process: a run survives each with the right rows, or ends with its cause.

``python -m benchmarks.verl_fault_table`` writes what this finds as a table.
"""

import pytest

from tests.soak import case
from tests.verl.fault_random import random_run
from tests.verl.fault_table import KINDS, MOMENTS, tried

CASES = [
    case(kind, moment, suite=kind.in_suite and i == n % len(MOMENTS), id=f"{kind.name}, moment {i}")
    for n, kind in enumerate(KINDS)
    for i, moment in enumerate(MOMENTS)
]
"""``make soak`` tries all kinds at all moments."""


@pytest.mark.parametrize(("kind", "moment"), CASES)
def test_a_fault_is_survived_with_the_right_rows_or_ends_the_run_with_its_cause(assets, kind, moment):
    found = tried(kind, moment, assets)
    assert found.struck and found.right, found


def test_kinds_are_told_apart_by_their_names():
    assert len({kind.name for kind in KINDS}) == len(KINDS) >= 60


@pytest.mark.parametrize(
    ("steps", "seed"), [case(10, 0, suite=True), case(200, 0, suite=False), case(200, 1, suite=False)]
)
def test_a_run_survives_faults_at_random_moments_without_an_operator(assets, steps, seed):
    found = random_run(assets, steps, seed)
    assert not found.last and not found.wrong and found.steps == steps and found.faults, found
    assert found.rollouts == found.budget
