"""``spend_costs`` against every allocation, dynamic programming over the whole budget, and scipy's integer solver."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.allocators.spending.knapsack import spend_costs
from tests.soak import case


def total(gains, bought):
    return sum(row[:n].sum() for row, n in zip(gains, bought, strict=True))


def best_of_all(gains, room, costs):
    counts = itertools.product(range(gains.shape[1] + 1), repeat=len(gains))
    return max(total(gains, n) for n in counts if np.dot(n, costs) <= room)


def variance_instance(prompts, seed, most=4000, width=61):
    """What VIP asks for: gains p (1 - p) / (m (m - 1)), costs of 50 to ``most``, 8 rollouts a prompt of mean cost."""
    rng = np.random.default_rng(seed)
    success, costs = rng.beta(0.7, 0.9, prompts), rng.integers(50, most + 1, prompts)
    m = np.arange(3, 3 + width)
    gains = 4 * (success * (1 - success))[:, None] / (m * (m - 1))
    return gains, int(8 * costs.mean() * prompts), np.full(prompts, 3), costs


@st.composite
def instances(draw):
    prompts, width = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    gain = st.sampled_from([-0.5, 0.0, 0.25, 0.5, 1.0]) | st.floats(-1, 1)
    rows = draw(st.lists(st.lists(gain, min_size=width, max_size=width), min_size=prompts, max_size=prompts))
    gains = np.array([sorted(row, reverse=True) for row in rows])
    gains[draw(st.integers(0, prompts - 1)), draw(st.integers(0, width)) :] = -np.inf
    costs = np.array(draw(st.lists(st.integers(1, 9), min_size=prompts, max_size=prompts)))
    low = np.array(draw(st.lists(st.integers(0, 2), min_size=prompts, max_size=prompts)))
    return gains, int(low @ costs) + draw(st.integers(0, int(costs.sum()) * width + 2)), low, costs


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(instances())
def test_total_gain_is_the_largest_of_all_and_what_is_left_buys_nothing(instance):
    gains, budget, low, costs = instance
    found = spend_costs(gains, budget, low, costs)
    bought = found.counts - low
    assert (bought >= 0).all() and found.counts @ costs <= budget
    assert found.gap == 0
    assert total(gains, bought) == pytest.approx(best_of_all(gains, budget - low @ costs, costs), abs=1e-9)
    more = bought < (gains >= 0).sum(axis=1)
    assert not (more & (costs <= budget - found.counts @ costs)).any()


@pytest.mark.parametrize("prompts", [case(512, suite=True), case(100_000, suite=False)])
def test_many_prompts_are_solved_to_the_proven_optimum(prompts):
    gains, budget, low, costs = variance_instance(prompts, seed=0)
    started = time.process_time()
    found = spend_costs(gains, budget, low, costs)
    assert prompts > 512 or time.process_time() - started < 0.5
    assert found.gap == 0 and budget - min(costs) < found.counts @ costs <= budget


@pytest.mark.parametrize("work", [0, 2_000])
def test_the_gap_bounds_what_is_missed_when_work_is_capped(work):
    open_ended = 0
    for seed in range(20):
        gains, budget, low, costs = variance_instance(12, seed)
        best = total(gains, spend_costs(gains, budget, low, costs).counts - low)
        found = spend_costs(gains, budget, low, costs, most_work=work)
        missed = best - total(gains, found.counts - low)
        assert -1e-12 <= missed <= found.gap + 1e-12
        open_ended += found.gap > 0
    assert open_ended > 0


def test_equal_densities_go_to_who_has_received_fewest_then_by_prompt_order():
    zeros = np.zeros((3, 3))
    assert spend_costs(zeros, 12, np.zeros(3, int), [1, 2, 3]).counts.tolist() == [2, 2, 2]
    assert spend_costs(zeros, 10, np.zeros(3, int), [1, 2, 3]).counts.tolist() == [3, 2, 1]
    assert spend_costs(zeros, 9, np.ones(3, int), [1, 2, 3]).counts.tolist() == [2, 2, 1]


def test_no_prompts_and_nothing_to_buy():
    assert spend_costs(np.zeros((0, 3)), 0, np.zeros(0, int), []).counts.tolist() == []
    assert spend_costs(np.zeros((2, 0)), 9, np.array([1, 2]), [1, 2]).counts.tolist() == [1, 2]
