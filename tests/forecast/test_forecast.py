"""What a forecast says: shares, prices, signals and splits against closed forms and what diagnose and replay say."""

from pathlib import Path

import numpy as np
import pytest

from apportion.diagnosis import waste_of
from apportion.forecast import RateSample, forecast, probe_of
from apportion.records import open_run, record_of_visits
from apportion.replay.population import OutcomePopulation

RUN = Path(__file__).parents[2] / "examples" / "data" / "grpo_run.jsonl.gz"


def known(rate, prompts=4000, trials=64):
    """Return a forecast of prompts that all have the same rate, from so many rollouts that it is known."""
    right = np.random.default_rng(0).binomial(trials, rate, prompts)
    return forecast(RateSample.of(right, np.full(prompts, trials)))


def test_diagnose_replay_and_forecast_say_the_same_of_the_same_log():
    rng = np.random.default_rng(0)
    record = record_of_visits(rng.binomial(8, rng.beta(0.4, 0.8, 200))[:, None].tolist(), 8, [*map(str, range(200))])
    said, waste = forecast(probe_of(record).sample), waste_of(record)
    eight = next(each for each in said.dead if each.n == 8)
    assert eight.value == pytest.approx(waste.dead.value)
    assert [eight.all_right * 200, eight.all_wrong * 200] == pytest.approx(waste.whole.groups[1:3])
    replayed, groups = OutcomePopulation.pools(record), np.arange(200)
    for each in said.dead[1:4]:
        assert each.value == pytest.approx(1 - replayed.mixed(groups, np.full(200, each.n)).mean())


def test_only_the_first_group_of_a_prompt_counts():
    record = open_run(RUN)
    probe = probe_of(record)
    assert probe.prompts == len(record.ids) and probe.rollouts == 8 * probe.prompts
    assert "the first of each counts" in probe.doubts[-1]


def test_the_signal_of_each_estimator_is_its_closed_form():
    found = known(0.5)
    assert found.signal["rloo"] == tuple((n - 1) / n for n in (1, 2, 4, 8, 16, 32))
    two = found.signal["grpo"][1]  # half of the pairs are mixed, with a deviation of 1/2: (1/4)^2 / (1/2 x 1/4)
    assert two == pytest.approx(0.5, abs=0.02)
    assert found.best == {"grpo": found.best["grpo"], "dr_grpo": 8, "rloo": 8, "reinforce": 1}


def test_refilling_costs_rollouts_over_the_share_of_mixed_groups_and_money_follows():
    sample = RateSample.of([0] * 40 + [2] * 20 + [4] * 40, [4] * 100)
    found = forecast(sample, group_size=4, prompts=1000, tokens=50.0, tokens_per_second=1000.0, price_per_hour=3.6)
    even, refilled = (next(e for e in found.epoch if (e.choice, e.n) == (name, 4)) for name in ("even", "refilled"))
    assert refilled.rollouts.value == pytest.approx(4000 / 0.2)
    assert refilled.rollouts.low < refilled.rollouts.value < refilled.rollouts.high
    assert (even.tokens, even.hours * 3600, even.cost) == pytest.approx((200_000, 200, 0.2))


def test_where_all_prompts_are_alike_no_split_and_no_choice_helps():
    found = known(0.5)
    vip = next(each for each in found.splits if each.rule == "vip")
    assert vip.variance == pytest.approx(1, abs=0.02) and vip.middle == pytest.approx(8, abs=0.1)
    assert found.chosen.value == pytest.approx(1 - 2 * 0.5**8, abs=0.01)
    assert found.change is None  # one group of 128 is dead


def test_more_probes_halve_the_widest_interval():
    rng = np.random.default_rng(0)
    rates = rng.beta(0.5, 0.8, 5000)
    found = forecast(RateSample.of(rng.binomial(4, rng.choice(rates, 100)), np.full(100, 4)))
    again = RateSample.of(
        rng.binomial(found.more.rollouts, rng.choice(rates, found.more.prompts)),
        np.full(found.more.prompts, found.more.rollouts),
    )
    halves = [(each.dead[-1].high - each.dead[-1].low) / 2 for each in (found, forecast(again))]
    assert found.more.half <= halves[0] / 2 and halves[1] < 0.75 * halves[0]
