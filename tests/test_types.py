import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion import Batch, Belief, Plan, Prompt, Rollout
from apportion.types import Group, prompt_id
from tests.builders import make_batch, make_prompts


def test_prompt_ids_are_content_hashes_never_positions():
    one, other = Prompt("1 + 1 ="), Prompt("2 + 2 =")
    assert [p.id for p in (one, other)] == [p.id for p in (Prompt("1 + 1 ="), Prompt("2 + 2 ="))]
    assert one.id != other.id
    assert prompt_id("1 + 1 =", "a") != prompt_id("1 + 1 =", "b")
    assert Prompt("1 + 1 =", id="row 7").id == "row 7"


def test_reward_follows_correct_unless_given():
    assert (Rollout(True).reward, Rollout(False).reward, Rollout(None).reward) == (1.0, 0.0, None)
    assert Rollout(correct=True, reward=-2.0).reward == -2.0
    with pytest.raises(ValueError, match="finite, got nan"):
        Rollout(reward=float("nan"))


def test_budgets_are_charged_to_asked_and_statistics_to_trials():
    batch = Batch.start(make_prompts(2), Belief.uniform(2))
    batch = batch.add(Plan([3, 1]), [[Rollout(True), Rollout(None, answer="7")], []])
    assert batch.asked.tolist() == [3, 1]
    assert batch.trials.tolist() == [1, 0]
    assert batch.successes.tolist() == [1, 0]
    assert batch.votes[0] == {"7": 1}
    assert batch.posterior.alpha.tolist() == [2, 1]


def test_more_rollouts_than_planned_are_refused():
    batch = Batch.start(make_prompts(1), Belief.uniform(1))
    with pytest.raises(ValueError, match="got 2 rollouts, but 1 were asked"):
        batch.add(Plan([1]), [[Rollout(True), Rollout(True)]])
    with pytest.raises(ValueError, match="one list of rollouts per prompt"):
        batch.add(Plan([1, 1]), [[], []])


def test_batches_are_values():
    batch = make_batch([[1, 0], [1]])
    batch.add(Plan([1, 0]), [[Rollout(True)], []])
    assert batch.trials.tolist() == [2, 1]
    with pytest.raises(ValueError, match="read-only"):
        batch.asked[0] = 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch.round = 3  # type: ignore[misc]


def test_values_compare_by_their_contents():
    assert make_batch([[1, 0], [1]]) == make_batch([[1, 0], [1]])
    assert make_batch([[1, 0], [1]]) != make_batch([[1, 0], [0]])
    assert Plan([1, 2]) == Plan([1, 2]) != Plan([1, 2], fresh=1)
    assert Belief.uniform(2) != Belief.uniform(3)


def test_join_keeps_order_and_counts():
    joined = make_batch([[1, 0]]).join(make_batch([[0], [1, 1, 1]]))
    assert joined.trials.tolist() == [2, 1, 3]
    assert joined.asked.tolist() == [2, 1, 3]
    assert len(joined.belief) == 3


@pytest.mark.parametrize(("alpha", "beta"), [([0.0], [0.0]), ([-1.0], [2.0]), ([np.nan], [1.0]), ([1.0, 1.0], [1.0])])
def test_impossible_beliefs_are_refused(alpha, beta):
    with pytest.raises(ValueError, match="alpha and beta must be"):
        Belief(np.array(alpha), np.array(beta))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.1, 100))
def test_from_mean_has_that_mean_and_strength(means, strength):
    belief = Belief.from_mean(means, strength)
    np.testing.assert_allclose(belief.mean, means, atol=1e-12)
    np.testing.assert_allclose(belief.alpha + belief.beta, strength)


def test_conditioning_is_counting():
    belief = Belief.uniform(2).condition([1, 0], [1, 1]).condition([2, 0], [3, 4])
    whole = Belief.uniform(2).condition([3, 0], [4, 5])
    np.testing.assert_array_equal(belief.alpha, whole.alpha)
    np.testing.assert_array_equal(belief.beta, whole.beta)


def test_plans_cannot_take_rollouts_back():
    with pytest.raises(ValueError, match="cannot take rollouts back"):
        Plan([1, -1])


def test_groups_need_rewards_and_one_keep_entry_a_rollout():
    rollouts = (Rollout(True), Rollout(False))
    assert Group(Prompt("a"), rollouts, np.array([True, False])).informative
    assert not Group(Prompt("a"), rollouts[:1], np.array([True])).informative
    with pytest.raises(ValueError, match=r"keep must be \[2\]"):
        Group(Prompt("a"), rollouts, np.array([True]))
    with pytest.raises(ValueError, match="has no reward"):
        Group(Prompt("a"), (Rollout(None),), np.array([True])).rewards  # noqa: B018
