"""The meter of a run under way measures what the diagnosis of its log measures afterwards."""

import math

import numpy as np
import pytest

from apportion.diagnosis import meter
from apportion.diagnosis.meter import RolloutMeter
from apportion.diagnosis.walks import vip_variances
from apportion.replay.foresight import batches_of
from apportion.types import Prompt
from tests.diagnosis.builders import run_of

RATES = np.concatenate([np.zeros(40), np.linspace(0.05, 0.95, 120), np.ones(40)])


def walked(record, meter):
    found = []
    for places in batches_of(record):
        rewards = [record.reward[record.first[g] : record.first[g + 1]].tolist() for g in places]
        found.append(meter.add([record.prompts[q] for q in record.prompt[places]], rewards))
    return found


def step(rewards, own=None):
    """Return what a meter, a new one by default, measures of a step with these groups of rewards."""
    return (own or RolloutMeter()).add([Prompt(f"{q}") for q in range(len(rewards))], rewards)


@pytest.fixture
def all_steps(monkeypatch):
    monkeypatch.setattr(meter, "WINDOW", 10_000)


@pytest.mark.usefixtures("all_steps")
def test_vip_variance_is_that_of_the_diagnosis():
    record = run_of(RATES, visits=6)
    planned, recorded = vip_variances(record, batches_of(record))
    *_, last = walked(record, RolloutMeter())
    assert last["variance_vip"] == pytest.approx(planned.sum() / recorded.sum(), rel=1e-9)
    size = record.trials.mean()
    assert last["saved_vip"] == pytest.approx(1 - size / (1 + (size - 1) / last["variance_vip"]))


@pytest.mark.usefixtures("all_steps")
def test_the_shares_are_those_of_the_run():
    record = run_of(RATES, visits=6)
    found = walked(record, RolloutMeter())
    assert np.mean([each["mixed"] for each in found]) == pytest.approx(record.mixed.mean(), abs=0.01)
    assert [each["dead_rollouts"] for each in found] == pytest.approx([1 - each["mixed"] for each in found])
    later = found[len(found) // 2 :]
    assert np.mean([each["mixed_expected"] - each["mixed"] for each in later]) == pytest.approx(0, abs=0.08)
    assert later[-1]["mixed_chosen"] > 1.2 * record.mixed.mean() and 0.1 < later[-1]["saved_chosen"] < 0.6
    assert later[-1]["signal_vip"] > 1.0


def test_rollouts_are_saved_and_not_groups():
    """The chosen group takes 8 of 10 rollouts, and has the only mixed group."""
    found = step([[0, 1] * 4, [1, 1]])
    assert (found["mixed_chosen"], found["saved_chosen"]) == (1.0, pytest.approx(0.2))


def test_graded_rewards_have_no_expected_share_and_failed_ones_are_left_out():
    """Rewards that differ by rounding alone are a dead group, as in a log."""
    found = step([[0.2, 0.4, math.nan], [0.1 + 0.2, 0.3], [0.5]])
    assert found["mixed"] == 0.5 and found["dead_rollouts"] == 0.5 and "mixed_expected" not in found
    assert step([[math.nan, 1.0]]) == {}
    infinite = step([[0.0, 1.0, math.inf], [1.0, 1.0, -math.inf]])
    assert infinite["mixed"] == 0.5 and all(np.isfinite(value) for value in infinite.values())


@pytest.mark.parametrize("rewards", [[[0, 0]], [[1, 1]], [[0, 1]], [[1, 0, 1]] * 2, [[0.0] * 8] * 4])
def test_small_and_dead_steps_give_no_figure_that_is_not_finite(rewards):
    own = RolloutMeter()
    for _ in range(3):
        found = step(rewards, own)
        assert all(np.isfinite(value) for value in found.values())


def test_what_is_long_past_is_forgotten():
    own = RolloutMeter()
    for _ in range(60):
        step([[0, 1] * 4, [0, 1] * 4, [0] * 8, [1] * 8], own)
    for _ in range(meter.WINDOW):
        found = step([[0, 1] * 4] * 4, own)
    assert found["mixed_chosen"] == 1.0 and found["saved_chosen"] == 0.0
