import math
import tomllib
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from apportion import DARS, Plan, Rollout, collect
from apportion.advantages import rloo
from apportion.allocators.dars import extra_rollouts
from apportion.config import build, dump, to_toml
from tests.builders import bernoulli_sampler, make_batch, make_prompts


def written_out(successes, trials, N, most):
    """The paper's formula, in fractions."""
    p = Fraction(successes, trials) if successes else Fraction(1, 2 * N)
    if p >= Fraction(1, 2):
        return 0
    signal = 2 * p * (1 - p)
    return min(math.ceil((Fraction(N, 2) - N * signal) / signal), most - N)


@given(st.integers(1, 40), st.integers(0, 60), st.data())
def test_the_second_round_is_the_papers_formula(N, room, data):
    trials = data.draw(st.integers(1, N))
    successes = data.draw(st.integers(0, trials))
    found = extra_rollouts(np.array([successes]), np.array([trials]), N, N + room)
    assert found.tolist() == [written_out(successes, trials, N, N + room)]


def test_the_defaults_are_the_papers_and_ask_this_by_the_number_of_correct_ones():
    """N = 8, N_max = 32. By hand at 1 of 8: p = 1/8, 2 p (1 - p) = 7/32, (4 - 7/4) / (7/32) = 10.3."""
    allocator = DARS()
    assert (allocator.pre_rollouts, allocator.high) == (8, 32)
    batch = make_batch([[1] * k + [0] * (8 - k) for k in range(9)])
    assert allocator.plan(batch) == Plan([24, 11, 3, 1, 0, 0, 0, 0, 0])


def test_extra_rollouts_bring_the_expected_signal_to_that_of_an_even_prompt():
    """If the share of correct ones stays as it is: 2 (N + extra) p (1 - p) is at least N / 2, and with one less not."""
    for k in (1, 2, 3):
        extra, p = int(extra_rollouts(np.array([k]), np.array([8]), 8, 1000)[0]), k / 8
        assert 2 * (8 + extra - 1) * p * (1 - p) < 4 <= 2 * (8 + extra) * p * (1 - p)


def test_there_are_two_rounds_and_the_second_ends_it_whatever_it_brings():
    allocator = DARS(pre_rollouts=4, high=10)
    batch = allocator.start(make_prompts(3))
    wrong, right = Rollout(False), Rollout(True)
    assert allocator.plan(batch) == Plan([4, 4, 4])
    batch = batch.add(Plan([4, 4, 4]), [[wrong] * 4, [right, wrong, wrong, wrong], [right] * 4])
    assert allocator.plan(batch) == Plan([6, 2, 0])
    batch = batch.add(Plan([6, 2, 0]), [[wrong] * 6, [wrong] * 2, []])
    assert not allocator.plan(batch)


def test_groups_hold_both_rounds():
    sample = bernoulli_sampler([0.0, 0.2, 0.9])
    batch = collect(DARS(), make_prompts(3), sample)
    groups = DARS().groups(batch)
    assert [len(group.rollouts) for group in groups] == batch.asked.tolist()
    assert batch.asked[0] == 32 and batch.asked[2] == 8 and all(group.keep.all() for group in groups)


def test_an_interrupted_first_round_is_completed_first():
    assert DARS().plan(make_batch([[0] * 5, [1]])) == Plan([3, 7])


def test_p_is_the_share_of_those_that_arrived():
    """Of eight asked, four arrived: one right of them is p = 1/4, for which (4 - 3) / (3/8) rounds up to 3."""
    batch = DARS().start(make_prompts(1)).add(Plan([8]), [[Rollout(True), *[Rollout(False)] * 3]])
    assert DARS().plan(batch) == Plan([3])


def test_a_prompt_whose_samples_all_failed_gets_no_more():
    batch = DARS().start(make_prompts(2)).add(Plan([8, 8]), [[], [Rollout(False)] * 8])
    assert DARS().plan(batch) == Plan([0, 24])


@pytest.mark.parametrize(("p", "ratio"), [(0.1, 1.17), (0.3, 1.08), (0.5, 1.02), (0.7, 1.00), (0.9, 1.00)])
def test_the_bias_is_as_documented(p, ratio):
    """All outcomes of a Bernoulli policy: the score of a rollout is y - p, the true gradient p (1 - p)."""
    expected = 0.0
    for first in range(9):
        extra = int(extra_rollouts(np.array([first]), np.array([8]), 8, 32)[0])
        for second in range(extra + 1):
            outcomes = np.repeat([1.0, 0.0], [first + second, 8 + extra - first - second])
            gradient = (rloo(outcomes, [0] * len(outcomes)) * (outcomes - p)).mean()
            expected += stats.binom.pmf(first, 8, p) * stats.binom.pmf(second, extra, p) * gradient
    assert expected / (p * (1 - p)) == pytest.approx(ratio, abs=0.006)


@pytest.mark.parametrize(("pre_rollouts", "high", "most"), [(3, 7, 6), (8, 32, 32), (8, 100, 35), (1, 9, 1)])
def test_a_batch_reaches_its_size_if_nothing_is_correct(pre_rollouts, high, most):
    allocator = DARS(pre_rollouts, high)
    batch = collect(allocator, make_prompts(5), bernoulli_sampler([0.0] * 5))
    assert batch.asked.sum() == allocator.size(5).asked == 5 * most


def test_graded_rewards_are_refused():
    batch = DARS().start(make_prompts(1)).add(Plan([1]), [[Rollout(reward=0.3)]])
    with pytest.raises(ValueError, match="rewards must be 0 or 1 for dars"):
        DARS().groups(batch)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pre_rollouts": 0}, "pre_rollouts must be at least 1 for dars, got 0; it learns"),
        ({"high": 7}, "high must be at least the 8 pre_rollouts of every prompt, got 7; raise it"),
    ],
)
def test_wrong_settings_are_refused_at_construction(settings, message):
    with pytest.raises(ValueError, match=message):
        DARS(**settings)


@pytest.mark.parametrize("allocator", [DARS(), DARS(pre_rollouts=4, high=16)])
def test_settings_survive_the_way_through_toml(allocator):
    assert build(DARS, tomllib.loads(to_toml(dump(allocator)))) == allocator
