import numpy as np
import pytest

from apportion import Group, Prompt, Rollout
from apportion.advantages import advantages_of, reinforce, reinforce_plus_plus, rloo, sequential


@pytest.fixture
def groups():
    return [
        Group(Prompt("a"), (Rollout(True, tokens=3), Rollout(False, tokens=5), Rollout(True, tokens=4, round=1))),
        Group(Prompt("b"), (Rollout(reward=0.5, tokens=8), Rollout(False, tokens=2)), keep=[False, True]),
        Group(Prompt("c"), ()),
        Group(Prompt("d"), (Rollout(True, tokens=9, round=2),)),
    ]


REWARDS, IDS = [1, 0, 1, 0.5, 0, 1], [0, 0, 0, 1, 1, 3]


def test_every_rollout_of_the_groups_gets_its_advantage_with_the_columns_that_the_estimator_needs(groups):
    given = {
        "rloo": rloo(REWARDS, IDS),
        "sequential": sequential(REWARDS, IDS, rounds=[0, 0, 1, 0, 0, 2]),
        "reinforce_plus_plus": reinforce_plus_plus(REWARDS, IDS, tokens=[3, 5, 4, 8, 2, 9]),
    }
    for name, expected in given.items():
        np.testing.assert_array_equal(advantages_of(groups, name), expected)
    expected = reinforce(REWARDS, IDS, baseline=[0.1, 0.1, 0.1, 0.2, 0.2, 0.4])
    np.testing.assert_array_equal(advantages_of(groups, "reinforce", baseline=[0.1, 0.2, 0.3, 0.4]), expected)


def test_a_missing_length_is_told_with_its_rollout():
    groups = [Group(Prompt("what?"), (Rollout(True, tokens=3), Rollout(False)))]
    with pytest.raises(
        ValueError, match=r"'reinforce_plus_plus' needs the length .* rollout 1 of prompt 'what\?'; set"
    ):
        advantages_of(groups, "reinforce_plus_plus")


@pytest.mark.parametrize(
    ("estimator", "baseline", "message"),
    [
        ("reinforce", None, "estimator 'reinforce' needs a baseline, got None; pass one number a group"),
        ("rloo", [0.1, 0.2, 0.3, 0.4], "estimator 'rloo' takes no baseline"),
        ("reinforce", [0.5] * 6, r"baseline must be \[4\], one number a group, got \(6,\)"),
        ("reinforce", [0.5, 0.5, 0.5, np.nan], r"baseline must be \[6\] and finite"),
        ("batch_optimal", None, "score_norm for batch_optimal, got None for prompt 'a'"),
        ("rlo", None, "estimator must be one of grpo, dr_grpo, rloo.* got 'rlo'"),
    ],
)
def test_columns_that_do_not_fit_the_estimator_are_refused(groups, estimator, baseline, message):
    with pytest.raises(ValueError, match=message):
        advantages_of(groups, estimator, baseline=baseline)


def test_a_rollout_without_a_reward_is_refused():
    with pytest.raises(ValueError, match="has no reward; verify it"):
        advantages_of([Group(Prompt("a"), (Rollout(answer="7"),))])
