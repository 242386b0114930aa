"""The benchmark of failed rollouts, at its smallest size."""

import asyncio

import pytest

pytest.importorskip("tinker_cookbook", reason="tinker-cookbook is not installed")

from benchmarks.failures import CASES, DRIVERS, measure


@pytest.mark.parametrize("name", DRIVERS)
def test_only_a_driver_that_discards_groups_loses_the_siblings_and_the_bias_of_what_arrives_stays(name):
    chance, depends, *_ = CASES.values()
    driver, _ = DRIVERS[name]
    wasted, ratio, half = asyncio.run(measure(driver, chance, 0.1, 30))
    low, high = (0.28, 0.4) if "discards" in name else (0.03, 0.07)
    assert low < wasted < high and abs(ratio - 1) < 1.6 * half
    _, ratio, half = asyncio.run(measure(driver, depends, 0.1, 30))
    assert abs(ratio - 1.051) < 1.6 * half
    if name == "the scheduler's loop":
        wasted, ratio, half = asyncio.run(measure(driver, CASES["these, scored again"], 0.1, 30))
        assert wasted < 0.005 and abs(ratio - 1) < 0.01 and half < 0.01
