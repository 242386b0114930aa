"""The updates as data: each can be carried out."""

import pytest

from apportion.advantages import ESTIMATORS
from apportion.consensus import SAMPLING, UPDATES


@pytest.mark.parametrize("name", sorted(UPDATES))
def test_the_estimator_exists_and_a_critic_goes_with_gae(name):
    update = UPDATES[name]
    assert update.estimator in (*ESTIMATORS, "gae")
    assert (update.critic_learning_rate is not None) == (update.estimator == "gae")


def test_the_settings_are_those_of_section_4_1():
    assert {name: (update.learning_rate, update.kl) for name, update in UPDATES.items()} == {
        "grpo": (1e-6, 0.001),
        "ppo": (1e-6, 0.001),
        "reinforce_plus_plus": (1e-6, 0.001),
        "sft": (2e-5, 0.0),
    }
    assert UPDATES["ppo"].critic_learning_rate == 1e-5
    assert (SAMPLING.temperature, SAMPLING.top_p) == (0.6, 0.95)
