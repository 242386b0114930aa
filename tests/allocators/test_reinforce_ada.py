from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from apportion import Plan, ReinforceAda, Rollout
from apportion.allocators.reinforce_ada import Exit, balanced_subset
from benchmarks import bias_exact
from tests.allocators.builders import graded
from tests.builders import finished, make_batch, make_prompts


def expected_rollouts(allocator, success):
    """m times the sum over rounds r of P(no exit within the first r m rollouts): an exit, once met, stays met."""
    m, n = allocator.rollouts_per_round, allocator.keep
    asked = m * np.arange(1, allocator.rounds)
    if allocator.exit == "positive":
        active = (1 - success) ** asked
    else:
        correct, wrong = n // 2, n - n // 2
        active = 1 - (binom.cdf(asked - wrong, asked, success) - binom.cdf(correct - 1, asked, success)).clip(0)
    return m * (1 + active.sum())


@pytest.mark.parametrize(
    "allocator",
    [
        ReinforceAda(exit=exit, rollouts_per_round=m, rounds=rounds, keep=keep)
        for exit in get_args(Exit)
        for m, rounds, keep in [(1, 6, 2), (2, 4, 3), (3, 3, 4)]
    ],
    ids=repr,
)
def test_expected_rollouts_by_enumeration_of_every_outcome(allocator):
    found = bias_exact.expected_rollouts(bias_exact.leaves(allocator))
    np.testing.assert_allclose(found, [expected_rollouts(allocator, p) for p in bias_exact.SUCCESS], rtol=1e-12)


def test_resuming_in_the_middle_of_a_round_asks_for_the_rest_of_it():
    batch = make_batch([[0, 0, 0, 0, 0], [0], [1]])
    assert ReinforceAda(exit="positive", rollouts_per_round=4).plan(batch).counts.tolist() == [3, 3, 0]


def test_a_failed_sample_is_not_a_wrong_one():
    batch = finished(make_prompts(1), [[Rollout(True)]], [2])
    assert ReinforceAda(rollouts_per_round=2, keep=2).plan(batch) == Plan([2])


def test_the_baseline_is_over_all_rollouts_and_the_loss_over_a_balanced_few():
    allocator = ReinforceAda(rollouts_per_round=8)
    (group,) = allocator.groups(make_batch([[0, 0, 0, 1, 0, 1, 1, 0]]))
    assert group.rewards.tolist() == [0, 0, 0, 1, 0, 1, 1, 0]
    assert np.flatnonzero(group.keep).tolist() == [0, 1, 3, 5]
    assert allocator.metrics(make_batch([[1, 1, 0, 0], [1, 0, 0, 0], [0] * 8])) == {"exited": 1}


@given(st.lists(st.sampled_from([True, False, None]), max_size=12), st.integers(2, 6))
def test_the_kept_subset_is_as_large_and_balanced_as_possible_and_the_first_of_each_kind(outcomes, keep):
    kept = balanced_subset(outcomes, keep)
    right, wrong = outcomes.count(True), outcomes.count(False)
    chosen = [outcome for outcome, k in zip(outcomes, kept, strict=True) if k]
    splits = [(a, b) for a in range(right + 1) for b in range(wrong + 1) if a + b == min(keep, right + wrong)]
    best = min(splits, key=lambda split: (abs(split[0] - split[1]), split[0] > split[1]))
    assert (chosen.count(True), chosen.count(False)) == best
    assert None not in chosen
    for kind in (True, False):
        flags = [k for outcome, k in zip(outcomes, kept, strict=True) if outcome is kind]
        assert flags == sorted(flags, reverse=True)


def test_rewards_above_the_threshold_are_correct_for_the_exit_and_the_subset_and_stay_graded():
    """0.6 itself is wrong."""
    allocator = ReinforceAda(rollouts_per_round=4, keep=2, threshold=0.6)
    batch = graded([0.6, 0.1, 0.3, 0.0], [0.7, 0.6, 0.6, 0.6], [0.9, 0.8, 1.0, 0.7])
    assert allocator.exited(batch).tolist() == [False, True, False]
    assert allocator.plan(batch) == Plan([4, 0, 4])
    positive = ReinforceAda(exit="positive", rollouts_per_round=4, keep=2, threshold=0.6)
    assert positive.exited(batch).tolist() == [False, True, True]
    group = allocator.groups(batch)[1]
    assert group.rewards.tolist() == [0.7, 0.6, 0.6, 0.6] and group.keep.tolist() == [True, True, False, False]


@given(
    st.lists(st.lists(st.booleans(), min_size=1, max_size=12), min_size=1, max_size=4), st.sampled_from(get_args(Exit))
)
def test_binary_rewards_and_a_threshold_between_them_change_nothing(outcomes, exit):
    batch = make_batch(outcomes)
    by_verdict, by_reward = (ReinforceAda(exit=exit, threshold=threshold) for threshold in (None, 0.5))
    assert by_verdict.plan(batch) == by_reward.plan(batch)
    assert by_verdict.groups(batch) == by_reward.groups(batch)
    assert by_verdict.metrics(batch) == by_reward.metrics(batch)
