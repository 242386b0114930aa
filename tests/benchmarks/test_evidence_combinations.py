"""Tests of the rules by which combinations of decisions are judged."""

import itertools

import pytest

from apportion.lab.report.results import SeedInterval
from benchmarks.evidence.claim import Verdict
from benchmarks.evidence.combinations import ALONE, CELLS, CLAIMS, all_three, effect, together

ABOVE, BELOW, ZERO = SeedInterval(0.2, 0.1), SeedInterval(-0.2, 0.1), SeedInterval(0.05, 0.1)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ([ABOVE, ABOVE], Verdict.HOLDS),
        ([ABOVE, ZERO], Verdict.CONDITIONS),
        ([ABOVE, BELOW], Verdict.CONDITIONS),
        ([BELOW, ZERO], Verdict.FAILS),
        ([ZERO, ZERO], Verdict.OPEN),
    ],
)
def test_a_gain_holds_only_if_every_interval_is_above_zero(found, verdict):
    assert together(found) is verdict


def areas_of(gains, interaction=0.0):
    """Return areas of two seeds in which every decision adds its gain, and all three together ``interaction``."""
    found = {}
    for used in itertools.product((False, True), repeat=3):
        name = "_".join(part for part, own in zip(ALONE, used, strict=True) if own) or "uniform"
        area = sum(gain for gain, own in zip(gains, used, strict=True) if own) + interaction * all(used)
        found[name] = [0.5 + area, 0.6 + area]
    return found


def test_an_effect_is_averaged_over_the_other_decisions():
    found = areas_of([0.1, -0.05, 0.2], interaction=0.04)
    expected = {"weights": 0.11, "vip": -0.04, "optimal": 0.21}
    for decision, gain in expected.items():
        assert effect(found, decision) == pytest.approx([gain, gain])


def test_all_three_are_judged_by_the_best_of_them():
    areas = areas_of([0.1, -0.05, 0.2])
    measured = {
        "controls.uniform_8_rloo" if name == "uniform" else f"combinations.{name}": {
            "area": [values[0], values[1] + 0.001],
            "end": [0.9, 0.9],
            "to_80": [1000.0, None],
        }
        for name, values in areas.items()
    }
    measured["combinations.weights_vip_optimal"]["area"][0] += 0.0001
    found = all_three(measured)
    assert found.ours.startswith("+0.050") and "baseline: optimal" in found.ours and found.verdict is Verdict.HOLDS
    assert found.rows[0][-1] == "1 of 2 runs"


def test_every_cell_of_combinations_is_read_by_a_claim():
    controls = ["controls.uniform_4_rloo", "controls.uniform_8_rloo"]
    read = {name for claim in CLAIMS for name in claim.needs([*CELLS, *controls])}
    assert read == {*CELLS, *controls}
