"""The outcome gate: no shaping where outcomes are equal, and exact gradients by all ways in which a group can end."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion import Prompt, Rollout, Uniform
from apportion.advantages import ACROSS_GROUPS, ESTIMATORS, advantages_of, gated
from apportion.allocators import TTRL
from apportion.baselines import SPO
from apportion.scheduler import TrainerAllocation
from apportion.types import Group
from tests.builders import GROUP_RELATIVE, finished, make_prompts

SHIFTED = GROUP_RELATIVE - {"maxrl"}
"""Estimators that do not change if one number is added to all rewards of a group."""
GROUPS = st.lists(st.lists(st.tuples(st.booleans(), st.floats(-2, 2)), min_size=1, max_size=5), min_size=1, max_size=4)


def group_of(pairs):
    return Group(
        Prompt("a"),
        tuple(
            Rollout(right, reward=reward, tokens=3 + i, score_norm=1.0 + i) for i, (right, reward) in enumerate(pairs)
        ),
    )


def decided(gate, estimator=None, baseline=None):
    return TrainerAllocation(allocator=Uniform(), estimator=estimator, baseline=baseline, outcome_gate=gate)


@given(GROUPS)
@pytest.mark.parametrize("gate", [True, "order"])
def test_dead_groups_have_their_outcomes_and_every_group_keeps_its_accuracy(gate, drawn):
    for group in map(group_of, drawn):
        found, right = gated(group, gate), [rollout.correct for rollout in group.rollouts]
        assert found.rewards.mean() == pytest.approx(np.mean(right))
        assert gated(found, gate).rewards == pytest.approx(found.rewards)
        if len(set(right)) < 2:
            assert found.rewards.tolist() == [float(each) for each in right]
        elif gate == "order":
            for outcome in (False, True):
                own = np.equal(right, outcome)
                assert found.rewards[own].mean() == pytest.approx(float(outcome))
                np.testing.assert_allclose(np.diff(found.rewards[own]), np.diff(group.rewards[own]), atol=1e-9)
        else:
            np.testing.assert_allclose(np.diff(found.rewards), np.diff(group.rewards), atol=1e-9)


@given(GROUPS)
@pytest.mark.parametrize("estimator", sorted(SHIFTED - {"reinforce_plus_plus_baseline"}))
def test_mixed_groups_have_the_advantages_of_their_rewards_and_dead_ones_none(estimator, drawn):
    groups = [group_of(pairs) for pairs in drawn]
    found = np.split(decided(True, estimator).advantages(groups), np.cumsum([len(each) for each in drawn])[:-1])
    for group, own in zip(groups, found, strict=True):
        if group.informative and len(set(group.rewards)) > 1 and group.rewards.std() > 1e-3:
            assert own == pytest.approx(advantages_of([group], estimator), rel=1e-6, abs=1e-6)
        elif not group.informative:
            assert not own.any()


def test_a_reward_without_shaping_is_not_changed_and_no_gate_changes_nothing():
    plain = group_of([(True, 1.0), (False, 0.0), (False, 0.0)])
    for gate in (True, "order"):
        assert gated(plain, gate).rewards.tolist() == [1.0, 0.0, 0.0]
    shaped = group_of([(True, 0.3), (True, 0.7)])
    assert gated(shaped, False) is shaped and gated(Group(Prompt("a"), ()), True).rollouts == ()
    assert decided(False).advantages([shaped]).tolist() == pytest.approx([-0.4, 0.4])


def score_of_accuracy(advantages, n, p, shaping):
    """Return E[sum of A_i (o_i - p)], the gradient in the log-odds of p, over all ways in which n rollouts can end.

    There are two right and two wrong responses, with ``shaping`` [4]. ``advantages`` are those of a group.
    """
    chances, total = np.array([0.7 * p, 0.3 * p, 0.4 * (1 - p), 0.6 * (1 - p)]), 0.0
    for ends in itertools.product(range(4), repeat=n):
        right = np.array([end < 2 for end in ends])
        found = advantages(group_of([(bool(o), float(o) + shaping[end]) for o, end in zip(right, ends, strict=True)]))
        total += chances[list(ends)].prod() * float(np.dot(found, right - p))
    return total


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_under_a_baseline_from_history_the_order_leaves_the_gradient_of_the_accuracy_as_it_is(p):
    n, shaping = 3, np.array([0.3, -0.2, 0.5, 0.1])

    def under(gate):
        return lambda group: decided(gate, "reinforce", SPO()).advantages([group], [0.4])

    assert score_of_accuracy(under("order"), n, p, shaping) == pytest.approx(n * p * (1 - p))
    level = [score_of_accuracy(under(True), n, p, shaping + shift) for shift in (0.0, 5.0)]
    assert level[0] == pytest.approx(level[1]) and level[0] != pytest.approx(n * p * (1 - p))


def test_shaping_that_is_not_centred_would_pay_for_mixed_groups():
    """A level of the shaping in mixed groups alone pushes the accuracy towards one half, whatever the outcome says."""

    def naive(group):
        outcomes = np.array([each.correct for each in group.rollouts], np.float64)
        return (group.rewards if group.informative else outcomes) - 0.4

    plain, paid = (score_of_accuracy(naive, 3, 0.9, np.full(4, level)) for level in (0.0, 1.0))
    assert plain == pytest.approx(3 * 0.9 * 0.1) and paid < plain - 0.1


@pytest.mark.parametrize("estimator", sorted(set(ESTIMATORS) & set(ACROSS_GROUPS) - {"reinforce", "spo"}))
def test_shaping_does_not_tell_the_rollouts_of_a_dead_group_apart_under_any_estimator(estimator):
    dead = Group(Prompt("a"), tuple(Rollout(True, reward=r, tokens=3, score_norm=1.0) for r in (0.2, 1.4)))
    groups = [dead, group_of([(True, 1.0), (False, 0.5)])]
    found = decided(True, estimator).advantages(groups)
    assert found[0] == pytest.approx(found[1])
    assert advantages_of(groups, estimator)[0] != pytest.approx(advantages_of(groups, estimator)[1])


def test_the_baseline_learns_outcomes_and_a_failed_rollout_teaches_nothing():
    decisions, prompts = decided(True, "reinforce", SPO()), make_prompts(1)
    decisions.observe(finished(prompts, [[Rollout(True, reward=7.0), Rollout(False, reward=-3.0)]], asked=[3]))
    assert decisions.baseline.predict(prompts) == pytest.approx([0.5])
    plain = decided(False, "reinforce", SPO())
    with pytest.raises(ValueError, match="outcome_gate must be True, as in the run that wrote the checkpoint"):
        plain.load_state_dicts(decisions.state_dicts(), decisions.settings)
    with pytest.raises(ValueError, match=r"rewards must be within \[0, 1\]"):
        plain.observe(finished(prompts, [[Rollout(True, reward=7.0)]]))


def test_what_it_cannot_work_with_is_refused():
    assert decided("order").needs.binary and not decided(False).needs.binary
    with pytest.raises(ValueError, match=r"a rollout must have a verdict under outcome_gate=True, got the reward 0\.5"):
        decided(True).advantages([Group(Prompt("a"), (Rollout(True), Rollout(reward=0.5)))])
    with pytest.raises(ValueError, match="outcome_gate must be False, True or 'order', got 'strict'"):
        decided("strict")
    with pytest.raises(ValueError, match="outcome_gate must be left out with ttrl, whose votes are the whole reward"):
        TrainerAllocation(allocator=TTRL(), outcome_gate=True)
