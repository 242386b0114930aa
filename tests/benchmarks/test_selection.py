"""Tests of the replay of selection rules: what they see, what is measured, and what the default rule reaches."""

from dataclasses import replace

import numpy as np
import pytest

from apportion.replay.choosing import Choices
from apportion.selection import GRESO, Mixed, MoPPS, Retire, ShuffledEpochs, SPOWeights
from benchmarks.real_run import BATCH
from benchmarks.real_run_data import Recorded, grpo_run
from benchmarks.selection import RULES, replay


@pytest.fixture(scope="module")
def run():
    return grpo_run()


@pytest.fixture(scope="module")
def small(run):
    """Return the first eight visits of a fifth of the problems, 15 steps."""
    return Recorded(run.rewards[::5, :8], run.embeddings[::5], run.rates[::5])


def choices(chosen, prompts):
    steps = np.zeros(len(chosen))
    return Choices(np.array(chosen), np.array(chosen), steps, steps, steps + 0.25, prompts)


def test_a_wait_counts_from_before_the_first_step_to_after_the_last():
    assert choices([[0, 1], [0, 1], [0, 1]], 2).longest_wait == 1
    assert choices([[0, 1], [0, 2], [0, 1], [0, 1]], 3).longest_wait == 3  # 2, from step 1 to the end
    assert choices([[0, 1], [0, 1]], 3).longest_wait == 3  # never chosen


def test_coverage_and_regret():
    found = choices([[0, 1], [0, 2], [0, 1]], 5)
    assert found.never == 2 and found.half == 1 and found.regret == 0.25


@pytest.mark.parametrize("make", [ShuffledEpochs, Mixed, SPOWeights, MoPPS, GRESO, Retire], ids=lambda make: make.name)
def test_rules_see_only_the_groups_of_their_earlier_choices(small, make):
    """What later visits hold, and what prompts that were not chosen hold, changes no choice."""
    found = replay(make(), small, 0, "same")
    rewards, unseen = 1 - small.rewards, np.ones(small.shares.shape, bool)
    for step, places in enumerate(found.chosen[:-1]):
        unseen[places, step * BATCH // len(small.rewards)] = False
    changed = replace(small, rewards=np.where(unseen[:, :, None], rewards, small.rewards))
    np.testing.assert_array_equal(replay(make(), changed, 0, "same").chosen, found.chosen)


def test_no_rule_is_as_good_as_knowing_the_rates(small):
    for name, make in RULES.items():
        assert replay(make(), small, 0, "near").regret > 0.005, name


@pytest.mark.slow
def test_the_default_rule_reaches_the_target_on_the_whole_run(run):
    """.93 of the groups are mixed, and every prompt is chosen again within 94 steps; without selection .52 are."""
    found = {name: replay(RULES[name](), run, 0, "near") for name in ("P(mixed)", "shuffled epochs")}
    assert found["P(mixed)"].mixed.mean() >= 0.925 and found["P(mixed)"].longest_wait <= 94
    assert 0.5 < found["shuffled epochs"].mixed.mean() < 0.54
