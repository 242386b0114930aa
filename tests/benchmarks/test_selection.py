"""Tests of the replay of selection rules: what they see, what is measured, and what the default rule reaches."""

from dataclasses import replace

import numpy as np
import pytest

from apportion.selection import GRESO, Mixed, MoPPS, Retire, ShuffledEpochs, SPOWeights
from benchmarks.real_run import BATCH
from benchmarks.real_run_data import Recorded, grpo_run
from benchmarks.selection import replay


@pytest.fixture(scope="module")
def run():
    return grpo_run()


@pytest.fixture(scope="module")
def small(run):
    """Return the first eight visits of a fifth of the problems, 15 steps."""
    return Recorded(run.rewards[::5, :8], run.embeddings[::5], run.rates[::5])


@pytest.mark.parametrize("make", [ShuffledEpochs, Mixed, SPOWeights, MoPPS, GRESO, Retire], ids=lambda make: make.name)
def test_rules_see_only_the_groups_of_their_earlier_choices(small, make):
    """What later visits hold, and what prompts that were not chosen hold, changes no choice."""
    found = replay(make(), small, 0, "same")
    rewards, unseen = 1 - small.rewards, np.ones(small.shares.shape, bool)
    for step, places in enumerate(found.chosen[:-1]):
        unseen[places, step * BATCH // len(small.rewards)] = False
    changed = replace(small, rewards=np.where(unseen[:, :, None], rewards, small.rewards))
    np.testing.assert_array_equal(replay(make(), changed, 0, "same").chosen, found.chosen)
