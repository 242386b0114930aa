import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betaln

from apportion import HORA, Belief, Prompt, Rollout, collect
from apportion.allocators.hora import clipped_prior, hit_gains, hit_utility, maximise_hits
from apportion.config import build
from apportion.predictors import MeanLengths, MovingAverage
from tests.builders import make_batch, make_prompts, splits
from tests.cases import check_all, lines, settings_of


def test_gains_are_the_expectation_of_a_first_hit_at_that_rollout():
    """E[p (1 - p)^l] by Beta functions; their sum is the chance of a hit."""
    alpha, beta = np.array([1.0, 5.0, 0.3]), np.array([1.0, 2.0, 7.0])
    gains = hit_gains(Belief(alpha, beta), 12)
    level = np.arange(12)
    closed = np.exp(betaln(alpha[:, None] + 1, beta[:, None] + level) - betaln(alpha[:, None], beta[:, None]))
    np.testing.assert_allclose(gains, closed, rtol=1e-12)
    np.testing.assert_allclose(hit_utility(Belief(alpha, beta), np.full(3, 12)), closed.sum(axis=1), rtol=1e-12)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=4), st.data())
def test_no_integer_allocation_has_more_expected_hits(counts, data):
    trials = np.array([a + b for a, b in counts])
    posterior = Belief.uniform(len(counts)).condition([a for a, _ in counts], trials)
    pending = np.array(data.draw(st.lists(st.integers(0, 2), min_size=len(counts), max_size=len(counts))))
    low, high = trials + pending, 13
    budget = int(low.sum()) + data.draw(st.integers(0, min(8, int((high - low).sum()))))
    chosen = maximise_hits(posterior, budget, low, high, pending)
    assert chosen.sum() == budget and (chosen >= low).all() and chosen.max() <= high
    extras = splits(budget - low.sum(), 0, 8, len(counts))
    best = max(hit_utility(posterior, pending + x).sum() for x in extras if (low + x <= high).all())
    assert hit_utility(posterior, chosen - trials).sum() == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("length", [1, 100, 10_000])
def test_the_second_stage_is_the_last_for_any_lengths(length):
    """Charged at the lengths that came back, short pre-rollouts would leave tokens for a third stage, and a fourth."""
    allocator = HORA(pre_rollouts=2, tokens_per_prompt=650, lengths=MeanLengths(initial=100))
    right = [False, True, True]
    sample = lambda prompts, counts: [  # noqa: E731
        [Rollout(correct, tokens=length)] * int(n) for correct, n in zip(right, counts, strict=True)
    ]
    batch = collect(allocator, make_prompts(3), sample)
    assert batch.round == 2
    assert batch.asked.sum() == 19 and batch.asked[0] > batch.asked[1:].max()


def test_a_prompt_that_always_failed_gets_more_than_its_pre_rollouts():
    """MovingAverage predicts exactly 0 for it. After it becomes solvable it must be found."""
    allocator = HORA(pre_rollouts=2, rollouts_per_prompt=8, predictor=MovingAverage())
    allocator.observe(make_batch([[0] * 8, [1, 0] * 4]))
    batch = allocator.start(make_prompts(2))
    assert batch.belief.mean.tolist() == [0.0, 0.5]
    batch = batch.add(allocator.plan(batch), [[Rollout(False)] * 2, [Rollout(True), Rollout(False)]])
    assert allocator.plan(batch).counts[0] > 0


@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_every_hit_utility_is_above_zero_whatever_the_predictor_says(mean):
    prior = clipped_prior(Belief.from_mean([mean, 0.5]))
    assert (hit_gains(prior.condition([0, 0], [8, 8]), 4) > 0).all()
    assert prior.alpha[1] == prior.beta[1] == 1.0, "the paper's prior is not changed"


BUDGETS = """
                                                     => 8
    rollouts_per_prompt = 8                          => 4
    rollouts_per_prompt = 3                          => 1
    rollouts_per_prompt = 1                          => 1
    budget = 36                                      => 6
    budget = 3                                       => 1
    tokens_per_prompt = 700, lengths = {initial = 100} => 3
    rollouts_per_prompt = 8, pre_rollouts = 2        => 2
"""


def test_pre_rollouts_are_half_of_the_budget_if_they_are_not_given():
    """With 8 of 8, verl's default, hora was uniform without a word."""

    def check(settings, pre):
        allocator = build(HORA, settings_of(settings))
        batch = allocator.start([Prompt(text) for text in "abc"])
        assert allocator.plan(batch).counts.tolist() == [int(pre)] * 3

    check_all(check, lines(BUDGETS))
