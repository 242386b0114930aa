"""TRL's formulas on groups of any size, compared with loops over the groups."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apportion.trl.advantages import Grouped, grpo, rloo, zero_deviation

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
    sizes = torch.tensor([len(group) for group in groups])
    scores = torch.tensor(np.concatenate(groups), dtype=torch.float32)
    return Grouped(scores, sizes, torch.tensor(weights).float(), clip=clip)


def rewards_of(groups, weights):
    """Return the rewards [n] of each group, NaN where no function gave a score."""
    sums = [np.nansum(group * weights, axis=1) for group in groups]
    return [np.where(np.isnan(group).all(1), np.nan, own) for group, own in zip(groups, sums, strict=True)]


def mean(values):
    return np.nansum(values) / max(1, (~np.isnan(values)).sum())


def deviation(values):
    """Return the unbiased standard deviation of what is known; 0 for fewer than two values."""
    known = values[~np.isnan(values)]
    return known.std(ddof=1) if len(known) > 1 else 0.0


def assert_advantages(found, expected, rewards, tolerance=1e-3):
    """``found`` are ``expected``, and 0 for a completion without a reward, or without another one in its group."""
    alone = [np.isnan(own) | ((~np.isnan(own)).sum() < 2) for own in rewards]
    expected = np.where(np.concatenate(alone), 0.0, np.concatenate(expected))
    assert found.tolist() == pytest.approx(expected, rel=tolerance, abs=tolerance)


@given(batches(), st.sampled_from(["group", "batch", "none"]))
def test_grpo_is_its_formula_within_each_group(batch, scale):
    rewards = rewards_of(*batch)
    of_batch = deviation(np.concatenate(rewards)) + EPSILON
    by = [{"none": 1.0, "group": deviation(own) + EPSILON, "batch": of_batch}[scale] for own in rewards]
    expected = [(own - mean(own)) / each for own, each in zip(rewards, by, strict=True)]
    assert_advantages(grpo(grouped(*batch), scale, "sum_then_normalize"), expected, rewards)


@given(batches(), CLIPS, st.booleans())
def test_rloo_is_its_formula_within_each_group(batch, clip, normalize):
    rewards = [own if clip is None else own.clip(*clip) for own in rewards_of(*batch)]
    others = [(np.nansum(own) - own) / max(1, (~np.isnan(own)).sum() - 1) for own in rewards]
    expected = [np.where((~np.isnan(r)).sum() < 2, np.nan, r - o) for r, o in zip(rewards, others, strict=True)]
    if normalize:
        every = np.concatenate(expected)
        expected = [(own - mean(every)) / (deviation(every) + EPSILON) for own in expected]
    assert_advantages(rloo(grouped(*batch, clip), normalize), expected, rewards)


@given(batches())
def test_normalize_then_sum_scales_each_reward_function_before_the_sum(batch):
    def scaled(column):
        return np.nan_to_num((column - mean(column)) / (deviation(column) + EPSILON))

    rewards, sums = rewards_of(*batch), []
    for group, own in zip(batch[0], rewards, strict=True):
        parts = np.stack([scaled(column) for column in group.T], axis=1) @ batch[1]
        sums.append(np.where(np.isnan(own), np.nan, parts))
    every = np.concatenate(sums)
    expected = [(own - mean(every)) / (deviation(every) + EPSILON) for own in sums]
    assert_advantages(grpo(grouped(*batch), "group", "normalize_then_sum"), expected, rewards, 5e-3)


def test_without_spread_in_a_batch_and_without_groups():
    for last, share in (([[0.0]], 0.0), ([[1.0]], 1.0)):
        assert zero_deviation(grouped([np.ones((2, 1)), np.array(last)], np.ones(1)), "batch") == share
    assert zero_deviation(Grouped(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), torch.ones(2))) == 1.0
