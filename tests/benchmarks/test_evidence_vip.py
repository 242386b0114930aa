"""Tests of the closed form behind graded rewards, the search through all allocations, and the size of advantages."""

import pytest

from benchmarks.evidence.learning import HARD, learn
from benchmarks.evidence.vip_learning_measured import AdvantageTrainer, signals


def test_the_size_of_advantages_is_that_of_rewards_about_their_mean(small_base_folder):
    """A group of which a share r is right has a mean size of 2 r (1 - r), which is concave in r."""
    tiny = {**HARD, "base": small_base_folder, "estimator": "dr_grpo", "rollouts": 512, "held_out": 2}
    found = learn({"name": "uniform", "rollouts_per_prompt": 32}, 0, tiny, signals, AdvantageTrainer)
    assert 0 < found["absolute advantage"] <= 2 * found["reward"] * (1 - found["reward"])
    assert found["reward"] == pytest.approx(found["success"], abs=0.1)
