"""Tests of the comparison of baselines: what was recorded, what a rule may see, and the headline figures."""

import numpy as np
import pytest

from benchmarks.baselines import gains, recorded
from benchmarks.baselines_rules import SHIPPED, WEIGHTS, Samples, halves, rules
from benchmarks.common import RESULTS, cells_of


def made(prompts=6, number=8, seed=0):
    """Return samples with random rewards and measures."""
    rng = np.random.default_rng(seed)
    rewards = (rng.random((prompts, number)) < rng.random((prompts, 1))).astype(float)
    return Samples(rewards, {name: rng.gamma(1.0, size=rewards.shape) for name in WEIGHTS} | {"equal": rewards * 0 + 1})


@pytest.mark.parametrize("name", rules() | SHIPPED, ids=" by ".join)
def test_no_baseline_sees_the_reward_of_its_own_rollout(name):
    history, present = halves(made(), np.random.default_rng(0), resample=False)
    rule = (rules() | SHIPPED)[name]
    before = np.broadcast_to(rule(history, present), present.rewards.shape)
    for place in np.ndindex(present.rewards.shape):
        rewards = present.rewards.copy()
        rewards[place] = 1 - rewards[place]
        after = np.broadcast_to(rule(history, Samples(rewards, present.measures)), rewards.shape)
        assert after[place] == pytest.approx(before[place], abs=1e-12)


@pytest.mark.slow
def test_the_table_is_remade_from_the_recorded_norms():
    columns, *rows = cells_of((RESULTS / "baselines.md").read_text().split("\n\n")[1])
    remade = {tuple(row[:2]): row[2:] for row in gains(recorded())}
    assert len(rows) >= 5 and columns[2:] == [*recorded()]
    for row in rows:
        assert remade[tuple(row[:2])] == row[2:], row
