"""The alarm for rewards with parts, on runs whose trends are known, and where a run hears it."""

import logging

import numpy as np
import pytest

from apportion import Rollout, Uniform
from apportion.diagnosis.health import health_of
from apportion.diagnosis.phantoms import shaping_steps
from apportion.engines.contract import EngineGroups
from apportion.engines.metrics import allocation_metrics
from apportion.scheduler import TrainerAllocation
from apportion.scheduler.shaping import LEAST, ShapingAlarm, StepShaping, shaping_of, shaping_of_groups
from tests.builders import finished, make_prompts
from tests.diagnosis.builders import record_of


def alarms(outcome, rest, gradient, seed=0, noise=0.05, agreement=-0.3):
    """Return the steps, from 1, at which the alarm tells something of means and agreements with noise."""
    rng, alarm = np.random.default_rng(seed), ShapingAlarm()
    size = len(outcome)
    rows = np.column_stack([outcome + noise * rng.normal(size=size), rest + 0.01 * rng.normal(size=size)])
    agreements = agreement + 0.2 * rng.normal(size=size)
    told = [alarm.add(StepShaping(*row, gradient, gradient, own)) for row, own in zip(rows, agreements, strict=True)]
    return [step for step, said in enumerate(told, 1) if said]


def test_shaping_that_rises_while_the_outcome_does_not_is_told_once():
    rises = np.linspace(0, 0.4, 60)
    (falling,), (level,) = alarms(0.6 - rises, rises, 0.4), alarms(0.5 + 0 * rises, rises, 0.4)
    assert LEAST <= falling <= 20 and LEAST <= level <= 20
    learns, tires = np.linspace(0.2, 0.7, 60), np.linspace(0.7, 0.3, 60)
    (late,) = alarms(np.append(learns, tires), np.append(0 * rises, rises), 0.4)
    assert 80 <= late <= 110


def test_a_run_that_learns_has_no_alarm_and_none_is_told_without_phantoms_or_without_a_trend():
    rises = np.linspace(0, 0.4, 60)
    assert not any(alarms(0.2 + 1.5 * rises, rises, 0.4, seed, 0.02) for seed in range(20))
    assert not alarms(0.6 - rises, rises, 0.1)
    assert not alarms(0.6 - rises, 0 * rises, 0.4)
    assert not alarms(0.6 - rises, -rises, 0.4)
    level = 0.5 + 0 * rises
    assert not alarms(level, rises, 0.4, agreement=0.2) and not alarms(level, rises, 0.4, agreement=np.nan)
    (falls,) = alarms(0.6 - rises, rises, 0.4, agreement=np.nan)  # it is known by what it does
    assert falls <= 24 and not alarms(0.6 - rises, rises, np.nan)
    level = np.full(200, 0.5)
    assert sum(bool(alarms(level, level, 0.5, seed)) for seed in range(30)) <= 1


def test_steps_are_counted_from_the_outcomes_and_rewards_of_groups():
    outcomes = np.array([1, 1, 0, 0, 0, 1, 0, 1, np.nan, 1])
    rewards = np.array([1.2, 1, 0, 0, 0, 1.5, 0, np.nan, 5, np.inf])
    group = np.repeat([7, 3, 2, 1, 0], 2)
    found = shaping_of(outcomes, rewards, group)
    assert found == pytest.approx((3 / 7, 0.1, 1 / 4, 1 / 2, 1))
    centred = shaping_of(outcomes, rewards, group, "rloo")
    assert centred == pytest.approx((3 / 7, 0.1, 1 / 4, 0.02 / (0.02 + 1.125), 1))
    assert shaping_of(outcomes, outcomes, group) is None
    assert shaping_of(outcomes * np.nan, rewards, group) is None
    near = shaping_of(np.ones(2), np.array([0.3, 0.3 * (1 + 1e-9)]), np.zeros(2, int))
    assert near.groups == 0 and np.isnan([near.gradient, near.agreement]).all()


@pytest.mark.parametrize(("paid", "agreement"), [(-0.1, -1), (0.1, 1), (0.0, np.nan)])
def test_shaping_agrees_with_the_outcome_of_mixed_groups_or_goes_against_it(paid, agreement):
    outcomes = np.array([1.0, 0, 1, 0, 0, 0])
    rewards = outcomes + np.array([paid, 0, paid, 0, 0.5, 0])
    found = shaping_of(outcomes, rewards, np.repeat([0, 1, 2], 2))
    assert found.agreement == pytest.approx(agreement, nan_ok=True) and found.groups == pytest.approx(1 / 3)


def batch_of(step, prompts=8, size=4):
    """Return a batch whose wrong answers are paid more at each step."""
    rng = np.random.default_rng(step)
    right = rng.random((prompts, size)) < np.repeat([0.0, 0.5], prompts // 2)[:, None]
    shaping = 0.02 * step + 0.1 * rng.random((prompts, size)) + 0.1 * ~right
    rows = zip(right.tolist(), (right + shaping).tolist(), strict=True)
    rollouts = [[Rollout(o, reward=r) for o, r in zip(*own, strict=True)] for own in rows]
    return finished(make_prompts(prompts), rollouts)


@pytest.mark.parametrize("gate", [False, True])
def test_a_run_in_any_driver_hears_it_once_unless_it_is_gated(caplog, gate):
    decisions = TrainerAllocation(allocator=Uniform(4), outcome_gate=gate)
    with caplog.at_level(logging.WARNING):
        for step in range(40):
            decisions.observe(batch_of(step))
    told = [line for line in caplog.messages if line.startswith("SICK (shaping): from step 1 to ")]
    assert len(told) == 1 - gate
    assert all("outcome_gate=True" in line for line in told)


def test_metrics_have_the_phantoms_of_a_reward_with_parts_alone():
    batch = batch_of(3)
    found = allocation_metrics(batch, Uniform(4).groups(batch), None)
    own = shaping_of_groups(batch.rollouts, None)
    assert (found["phantom"], found["phantom_gradient"]) == (own.groups, own.gradient) and own.groups >= 1 / 2
    plain = finished(make_prompts(1), [[Rollout(True), Rollout(False)]])
    assert "phantom" not in allocation_metrics(plain, Uniform(2).groups(plain), None)


def record_of_batches(steps):
    batches = [batch_of(step) for step in range(steps)]
    rollouts = [list(own) for batch in batches for own in batch.rollouts]
    outcomes, rewards = (
        np.array([[getattr(one, name) for one in own] for own in rollouts], float) for name in ("correct", "reward")
    )
    return record_of(
        rewards,
        np.tile(np.arange(8), steps),
        np.repeat(np.arange(steps), 8),
        components={"acc": outcomes.ravel(), "length": (rewards - outcomes).ravel()},
    )


def test_a_log_has_the_same_steps_and_the_sign():
    record = record_of_batches(40)
    for step, found in shaping_steps(record):
        assert found == pytest.approx(shaping_of_groups(batch_of(step).rollouts, None))
    (sign,) = [sign for sign in health_of(record).signs if sign.kind == "shaping"]
    assert 12 <= sign.onset + 1 <= 24 and "outcome_gate=True" in sign.remedy


def test_an_engine_of_single_groups_hears_it_from_the_updates_that_it_trains_on(caplog):
    batch = batch_of(0)
    groups = EngineGroups(TrainerAllocation(allocator=Uniform(4), estimator="grpo"), batch.prompts, lost_after=64)
    with caplog.at_level(logging.WARNING):
        for step in range(40):
            opened = [groups.next() for _ in batch.prompts]
            rollouts = dict(zip((prompt.id for prompt in batch.prompts), batch_of(step).rollouts, strict=True))
            own = [rollouts[each.prompt.id] for each in opened]
            for each, rows in zip(opened, own, strict=True):
                assert groups.observe(each.key, rows) == 0
            groups.advantages([each.key for each in opened for _ in range(4)], [one for rows in own for one in rows])
    told = [line for line in caplog.messages if line.startswith("SICK (shaping): from step ")]
    assert len(told) == 1
