"""TRL's formulas on groups of any size, compared with loops over the groups."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from apportion.advantages import ESTIMATORS
from apportion.trl.advantages import Grouped, grpo, rloo, weighted_rewards, zero_deviation

EPSILON = 1e-4
CLIPS = st.sampled_from([None, (-0.5, 0.75)])


@st.composite
def batches(draw):
    """Groups of several sizes with scores [n, F] of one to three functions, some of them NaN, and the weights [F]."""
    functions = draw(st.integers(1, 3))
    row = st.lists(st.sampled_from([0.0, 1.0, 0.25, -2.0, np.nan]), min_size=functions, max_size=functions)
    groups = draw(st.lists(st.lists(row, min_size=1, max_size=5), min_size=1, max_size=5))
    weights = draw(st.lists(st.sampled_from([1.0, 0.5, 2.0]), min_size=functions, max_size=functions))
    return [np.array(group) for group in groups], np.array(weights)


def grouped(groups, weights, clip=None):
    sizes = torch.tensor([len(group) for group in groups], dtype=torch.long)
    scores = torch.tensor(np.concatenate([np.zeros((0, len(weights))), *groups]), dtype=torch.float32)
    of_functions = scores, torch.tensor(weights).float()
    return Grouped(weighted_rewards(*of_functions), sizes, *of_functions, clip=clip)


def by_numpy(name, batch, clip=None):
    """Return the advantages of ``ESTIMATORS`` for rewards without a gap; 0 for a completion without a reward."""
    groups, weights = batch
    scores = np.concatenate(groups)
    rewards = np.where(np.isnan(scores).all(1), np.nan, np.nansum(scores * weights, axis=1))
    rewards = rewards if clip is None else rewards.clip(*clip)
    of, known, found = np.repeat(range(len(groups)), list(map(len, groups))), ~np.isnan(rewards), np.zeros(len(rewards))
    if known.any():
        found[known] = ESTIMATORS[name](rewards[known], of[known])
    return found


def masks(groups):
    """Return which completions have a reward [N], and which have one beside another of their group [N]."""
    known = [~np.isnan(group).all(1) for group in groups]
    return np.concatenate(known), np.concatenate([own & (own.sum() > 1) for own in known])


def whitened(values, among):
    """Return values minus the mean of those ``among`` them, by their deviation."""
    own = values[among]
    return (values - (own.mean() if len(own) else 0.0)) / (deviation(own) + EPSILON)


def deviation(values):
    return values.std(ddof=1) if len(values) > 1 else 0.0


def assert_close(found, expected):
    np.testing.assert_allclose(found.numpy(), expected, rtol=5e-3, atol=5e-3)


@given(batches())
def test_grpo_is_our_own_estimator_within_each_group(batch):
    rewards = weighted_rewards(*map(torch.tensor, (np.concatenate(batch[0]), batch[1]))).numpy()
    of_batch = by_numpy("dr_grpo", batch) / (deviation(rewards[~np.isnan(rewards)]) + EPSILON)
    expected = {"group": by_numpy("grpo", batch), "none": by_numpy("dr_grpo", batch), "batch": of_batch}
    for scale, advantages in expected.items():
        assert_close(grpo(grouped(*batch), scale, "sum_then_normalize"), advantages)


@given(batches())
def test_normalize_then_sum_scales_each_reward_function_before_the_sum(batch):
    groups, weights = batch
    columns = [([group[:, [f]] for group in groups], [1.0]) for f in range(len(weights))]
    sums = sum(weight * by_numpy("grpo", column) for weight, column in zip(weights, columns, strict=True))
    known, used = masks(groups)
    assert_close(grpo(grouped(*batch), "group", "normalize_then_sum"), np.where(used, whitened(sums, known), 0.0))


@given(batches(), CLIPS, st.booleans())
def test_rloo_is_our_own_estimator_within_each_group(batch, clip, normalize):
    expected, (_, used) = by_numpy("rloo", batch, clip), masks(batch[0])
    expected = np.where(used, whitened(expected, used), 0.0) if normalize else expected
    assert_close(rloo(grouped(*batch, clip), normalize), expected)


def test_without_spread_in_a_batch_and_without_groups():
    for last, share in (([[0.0]], 0.0), ([[1.0]], 1.0)):
        assert zero_deviation(grouped([np.ones((2, 1)), np.array(last)], np.ones(1)), "batch") == share
    assert zero_deviation(grouped([], np.ones(2))) == 1.0
