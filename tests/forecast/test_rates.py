"""The estimate of success rates: the maximum of its likelihood, and intervals that hold the truth."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import minimize

from apportion.forecast import RATES, RateSample, fit_rates
from apportion.forecast.forecast import dead_groups
from apportion.forecast.rates import MOST_PATTERNS, MOST_TRIALS, likelihoods, maximise


def drawn(rates, prompts, trials, seed=0):
    rng = np.random.default_rng(seed)
    trials = np.broadcast_to(trials, prompts)
    return RateSample.of(rng.binomial(trials, rng.choice(rates, prompts)), trials)


def test_the_interior_point_finds_the_maximum_that_a_general_solver_finds():
    sample = RateSample.of([0, 0, 0, 1, 2, 4, 4, 1], [4, 4, 4, 4, 4, 4, 4, 2])
    likelihood = likelihoods(sample.successes, sample.trials)
    counts, guess = sample.prompts / 8, np.random.default_rng(0).gamma(0.3, size=len(RATES)) + 1e-3

    def loss(x):
        w = np.exp(x - x.max())
        w /= w.sum()
        return -(counts @ np.log(likelihood @ w) + guess @ np.log(w))

    best = minimize(loss, np.zeros(len(RATES)), method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-15})
    w = maximise(likelihood, counts[None], guess[None])[0]
    assert loss(np.log(w)) <= best.fun + 1e-9
    assert w.sum() == pytest.approx(1) and (w > 0).all()


@pytest.mark.parametrize("trials", [4, np.tile([2, 4, 8], 1000)], ids=["equal", "unequal"])
def test_much_data_recovers_what_so_many_rollouts_can_tell(trials):
    rates = np.r_[np.zeros(3), np.ones(2), np.full(5, 0.5)]
    (found,) = dead_groups(sample := drawn(rates, 3000, trials, 1), fit_rates(sample), [4])
    truth = 0.5 + 0.5 * 2 * 0.5**4
    assert found.low <= truth <= found.high and found.high - found.low < 0.06
    assert found.all_right == pytest.approx(0.2 + 0.5 / 16, abs=0.02)


def test_intervals_of_ninety_percent_hold_the_truth_about_as_often():
    rates = np.random.default_rng(1).beta(0.6, 1.2, 5000)
    truth = [(rates**n + (1 - rates) ** n).mean() for n in (4, 8, 16, 32)]
    held = np.zeros((60, 4))
    for seed in range(60):
        sample = drawn(rates, 100, 4, seed)
        found = dead_groups(sample, fit_rates(sample, 100), (4, 8, 16, 32))
        held[seed] = [each.low <= real <= each.high for each, real in zip(found, truth, strict=True)]
    assert (held.mean(axis=0) >= 0.8).all()
    assert held[:, 0].mean() < 1


def test_one_rollout_a_prompt_bounds_by_the_mean_alone():
    sample = RateSample.of([0] * 60 + [1] * 40, np.ones(100, int))
    two, eight = dead_groups(sample, fit_rates(sample), (2, 8))
    assert eight.high == 1 and two.low == pytest.approx(0.5, abs=0.02)
    assert eight.low == pytest.approx(0.5**7, abs=0.01)  # all prompts alike, at the mean nearest to one half


def test_groups_are_counted_as_far_as_they_go_and_never_grow_more_dead():
    sample = RateSample.of([0, 1, 4, 4], [4] * 4)
    found = dead_groups(sample, fit_rates(sample), (1, 2, 4, 8, 16))
    assert [(each.all_right, each.all_wrong) for each in found[1:3]] == [(0.5, 0.375), (0.5, 0.25)]
    assert all(one.value >= other.value for one, other in pairwise(found))


def test_many_rollouts_and_many_patterns_are_thinned_without_bias():
    rng = np.random.default_rng(0)
    p, trials = rng.beta(0.5, 0.5, 40_000), rng.integers(1, 300, 40_000)
    sample = RateSample.of(rng.binomial(trials, p), trials)
    assert len(sample.prompts) <= MOST_PATTERNS and sample.trials.max() == MOST_TRIALS
    assert sample.prompts.sum() == 40_000
    mean = np.average(sample.successes / sample.trials, weights=sample.prompts)
    assert mean == pytest.approx(p.mean(), abs=0.01)
