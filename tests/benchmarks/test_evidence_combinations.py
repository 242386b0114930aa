"""Tests of how combinations of decisions are compared."""

import itertools

import pytest

from benchmarks.evidence.measures import ALONE, best_of, main_effect


def areas_of(gains, interaction=0.0):
    """Return values of two seeds in which every decision adds its gain, and all three together ``interaction``."""
    found = {}
    for used in itertools.product((False, True), repeat=3):
        name = "_".join(part for part, own in zip(ALONE, used, strict=True) if own)
        area = sum(gain for gain, own in zip(gains, used, strict=True) if own) + interaction * all(used)
        cell = f"combinations.{name}" if name else "controls.uniform_8_rloo"
        found[cell] = {"area": [0.5 + area, 0.6 + area]}
    return found


def test_an_effect_is_averaged_over_the_other_decisions():
    found = areas_of([0.1, -0.05, 0.2], interaction=0.04)
    for decision, gain in {"weights": 0.11, "vip": -0.04, "optimal": 0.21}.items():
        (effect,) = main_effect(found, decision)
        assert effect.mean == pytest.approx(gain) and effect.low == pytest.approx(effect.high)


def test_all_three_are_compared_with_the_best_of_them():
    (effect,) = best_of(areas_of([0.1, -0.05, 0.2]), "weights_vip_optimal", ALONE, "area against the best part ({})")
    assert effect.mean == pytest.approx(0.05) and "best part (optimal)" in effect.name
