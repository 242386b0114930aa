import itertools
import tomllib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from apportion import Batch, Belief, Knapsack, collect
from apportion.allocators.knapsack import maximise_value, value_gains
from apportion.config import build, dump, to_toml
from apportion.predictors import MeanLengths, RunningVariance, UniformPrior
from tests.builders import bernoulli_sampler, make_batch, make_prompts

weights = st.floats(0.01, 50)


def value(p, n):
    """The value of a prompt, as the paper writes it."""
    return (1 - p**n - (1 - p) ** n) * p * (1 - p) ** 2


@given(weights, weights, st.integers(1, 40))
def test_gains_never_rise_and_are_at_least_zero(a, b, low):
    (gains,) = value_gains(Belief([a], [b]), low, 60)
    assert (gains >= 0).all() and (np.diff(gains) <= 0).all()


@pytest.mark.parametrize("low", [1, 2, 5])
@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (0.7, 6.0), (9.0, 2.5), (30.0, 80.0)])
def test_gains_are_expected_differences_of_the_value(a, b, low):
    """By numerical integration over the belief."""
    density = stats.beta(a, b).pdf
    expected = [
        integrate.quad(lambda p, n=n: density(p) * (value(p, n + 1) - value(p, n)), 0, 1)[0]
        for n in range(low, low + 6)
    ]
    np.testing.assert_allclose(value_gains(Belief([a], [b]), low, 6)[0], expected, rtol=1e-6)


@settings(max_examples=150, deadline=None)
@given(beliefs=st.lists(st.tuples(weights, weights), min_size=1, max_size=4), data=st.data())
def test_no_split_of_the_budget_has_a_larger_expected_value(beliefs, data):
    """Every split within the bounds is enumerated; the expectation is taken at 4,000 points of the belief."""
    low = data.draw(st.integers(1, 3))
    high = low + data.draw(st.integers(0, 6))
    budget = data.draw(st.integers(low * len(beliefs), high * len(beliefs)))
    a, b = np.array(beliefs).T
    counts = maximise_value(Belief(a, b), budget, low, high)
    assert counts.sum() == budget and counts.min() >= low and counts.max() <= high
    p = stats.beta(a, b).ppf((np.arange(4000)[:, None] + 0.5) / 4000)
    worth = {n: value(p, n).mean(axis=0) for n in range(low, high + 1)}

    def total(split):
        return sum(worth[n][q] for q, n in enumerate(split))

    every = [split for split in itertools.product(range(low, high + 1), repeat=len(a)) if sum(split) == budget]
    assert total(counts.tolist()) >= max(map(total, every)) - 2e-4 * len(a)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=4), st.integers(1, 2), st.integers(0, 5), st.data())
def test_a_belief_of_great_strength_gives_the_best_split_at_known_p(success, low, extra, data):
    """This is the paper's problem, solved by enumeration."""
    high = low + extra
    budget = data.draw(st.integers(low * len(success), high * len(success)))
    counts = maximise_value(Belief.from_mean(success, strength=1e12), budget, low, high)
    every = [split for split in itertools.product(range(low, high + 1), repeat=len(success)) if sum(split) == budget]
    totals = [sum(value(p, n) for p, n in zip(success, split, strict=True)) for split in every]
    found = sum(value(p, n) for p, n in zip(success, counts.tolist(), strict=True))
    assert found == pytest.approx(max(totals), rel=1e-6, abs=1e-9)


def test_a_hard_prompt_gets_more_than_an_easy_one_that_is_as_uncertain():
    counts = Knapsack(budget=24).plan(make_batch([[], []], Belief([2, 8], [8, 2]))).counts
    assert counts[0] > 1.5 * counts[1] and counts.sum() == 24


def test_a_prompt_that_always_failed_keeps_a_value():
    """With its mean of 0 in place of the belief it would never get more than the least."""
    failed = Belief.uniform(1).condition([0], [8])
    assert value_gains(failed, low=2, width=1)[0, 0] > 0
    assert value_gains(Belief([0.0], [8.0]), low=2, width=1)[0, 0] == 0


def test_prompts_without_any_value_share_what_is_left():
    counts = maximise_value(Belief([0.0, 3.0, 1.0], [3.0, 0.0, 1.0]), budget=14, low=2, high=6)
    assert counts.tolist() == [4, 4, 6]


def test_it_learns_from_outcomes():
    allocator, success = Knapsack(rollouts_per_prompt=8), [0.02, 0.3, 0.5, 1.0]
    sample = bernoulli_sampler(success)
    for _ in range(10):
        allocator.observe(collect(allocator, make_prompts(4), sample))
    counts = allocator.plan(allocator.start(make_prompts(4))).counts
    assert counts.sum() == 32 and counts.argmax() in (0, 1) and counts[3] == counts.min() == 2


def test_a_token_budget_weighs_the_value_against_tokens():
    """Of two prompts with the same belief the one with short completions gets more rollouts."""
    allocator = Knapsack(tokens_per_prompt=300, lengths=MeanLengths(initial=20))
    batch = Batch.start(make_prompts(2), Belief.uniform(2), costs=[10.0, 60.0])
    counts = allocator.plan(batch).counts
    assert counts[0] > counts[1] >= 2 and batch.costs @ counts <= 600


def test_binary_rewards_are_needed_whatever_the_predictor():
    assert Knapsack().needs.binary and Knapsack(predictor=RunningVariance()).needs.binary


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"low": 0}, "low must be at least 1 for knapsack, got 0; a prompt"),
        ({"low": 8, "high": 4}, "high must be at least 8"),
        ({"rollouts_per_prompt": 1}, "between 2 and 128, got 1"),
    ],
)
def test_wrong_settings_are_refused_at_construction(settings, message):
    with pytest.raises(ValueError, match=message):
        Knapsack(**settings)


@pytest.mark.parametrize("allocator", [Knapsack(), Knapsack(budget=99, low=1, high=32, predictor=UniformPrior())])
def test_settings_survive_the_way_through_toml(allocator):
    assert build(Knapsack, tomllib.loads(to_toml(dump(allocator)))) == allocator
