"""TRL's formulas on groups of any size, compared with loops over plain numbers."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apportion.trl.advantages import Grouped, grpo, rloo, zero_deviation

EPSILON = 1e-4
SILENT = math.nan


@st.composite
def batches(draw):
    """Groups of several sizes with scores of one to three functions, some of them NaN, and the weights."""
    functions = draw(st.integers(1, 3))
    score = st.sampled_from([0.0, 1.0, 0.25, -2.0, SILENT])
    row = st.lists(score, min_size=functions, max_size=functions)
    groups = draw(st.lists(st.lists(row, min_size=1, max_size=5), min_size=1, max_size=5))
    weights = draw(st.lists(st.sampled_from([1.0, 0.5, 2.0]), min_size=functions, max_size=functions))
    return groups, weights


def grouped(groups, weights):
    scores = torch.tensor([row for group in groups for row in group])
    return Grouped(scores, torch.tensor([len(group) for group in groups]), torch.tensor(weights))


def reward(row, weights):
    known = [weight * score for weight, score in zip(weights, row, strict=True) if not math.isnan(score)]
    return sum(known) if known else None


def mean(values):
    return sum(values) / len(values)


def deviation(values):
    """Return the unbiased standard deviation; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    return math.sqrt(sum((value - mean(values)) ** 2 for value in values) / (len(values) - 1))


def rewards_of(groups, weights):
    return [[reward(row, weights) for row in group] for group in groups]


def scored(rewards):
    return [value for value in rewards if value is not None]


def expected_grpo(groups, weights, scale):
    rewards = rewards_of(groups, weights)
    everything = deviation([value for own in rewards for value in scored(own)])
    found = []
    for own in rewards:
        known = scored(own)
        by = {"none": 1.0, "group": deviation(known) + EPSILON, "batch": everything + EPSILON}[scale]
        found += [0.0 if value is None or len(known) < 2 else (value - mean(known)) / by for value in own]
    return found


def expected_rloo(groups, weights, clip, normalize):
    found = []
    for own in rewards_of(groups, weights):
        if clip:
            own = [None if value is None else min(max(value, clip[0]), clip[1]) for value in own]
        known = scored(own)
        found += [
            None if value is None or len(known) < 2 else value - (sum(known) - value) / (len(known) - 1)
            for value in own
        ]
    known = scored(found)
    if normalize:
        alone = len(known) < 2
        found = [
            None if value is None or alone else (value - mean(known)) / (deviation(known) + EPSILON) for value in found
        ]
    return [0.0 if value is None else value for value in found]


@given(batches(), st.sampled_from(["group", "batch", "none"]))
def test_grpo_is_its_formula_within_each_group(batch, scale):
    found = grpo(grouped(*batch), scale, "sum_then_normalize").tolist()
    assert found == pytest.approx(expected_grpo(*batch, scale), rel=1e-3, abs=1e-3)


@given(batches(), st.sampled_from([None, (-0.5, 0.75)]), st.booleans())
def test_rloo_is_its_formula_within_each_group(batch, clip, normalize):
    found = rloo(grouped(*batch), clip, normalize).tolist()
    assert found == pytest.approx(expected_rloo(*batch, clip, normalize), rel=1e-3, abs=1e-3)


@given(batches())
def test_normalize_then_sum_scales_each_reward_function_before_the_sum(batch):
    groups, weights = batch
    sums, alone = [], []
    for group, rewards in zip(groups, rewards_of(groups, weights), strict=True):
        columns = [[score for score in column if not math.isnan(score)] for column in zip(*group, strict=True)]
        for row, total in zip(group, rewards, strict=True):
            parts = [
                weight * (score - mean(column)) / (deviation(column) + EPSILON)
                for score, column, weight in zip(row, columns, weights, strict=True)
                if not math.isnan(score) and len(column) > 1
            ]
            sums.append(None if total is None else sum(parts))
            alone.append(total is None or len(scored(rewards)) < 2)
    known = scored(sums)
    spread = deviation(known) + EPSILON if len(known) > 1 else math.inf
    expected = [0.0 if single else (value - mean(known)) / spread for value, single in zip(sums, alone, strict=True)]
    found = grpo(grouped(*batch), "group", "normalize_then_sum").tolist()
    assert found == pytest.approx(expected, rel=5e-3, abs=5e-3)


@given(batches(), st.sampled_from([None, (-0.5, 0.75)]))
def test_zero_deviation_is_the_share_of_groups_with_equal_rewards(batch, clip):
    flat = []
    for own in rewards_of(*batch):
        known = scored(own)
        known = [min(max(value, clip[0]), clip[1]) for value in known] if clip else known
        flat.append(len(set(known)) < 2)
    assert zero_deviation(grouped(*batch), "group", clip) == pytest.approx(mean(flat))


def test_without_spread_in_a_batch_and_without_groups():
    assert zero_deviation(grouped([[[1.0], [1.0]], [[0.0]]], [1.0]), "batch") == 0.0
    assert zero_deviation(grouped([[[1.0], [1.0]], [[1.0]]], [1.0]), "batch") == 1.0
    empty = Grouped(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), torch.ones(2))
    assert zero_deviation(empty) == 1.0


def test_a_padded_table_holds_each_rollout_once():
    batch = grouped([[[1.0], [2.0], [3.0]], [[4.0]], [[5.0], [6.0]]], [1.0])
    table = batch.table(batch.rewards)
    assert table.shape == (3, 3) and table.isnan().sum() == 3
    assert table[~table.isnan()].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
