import numpy as np
import pytest
import torch

from apportion import Group
from apportion.lab.measure.moments import Moments, least_variance, score_moments
from apportion.lab.measure.variance import measure_variances, ratio_interval
from apportion.lab.policy.exact import exact_success
from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.training.loss import surrogate_loss, training_rows
from apportion.lab.world.task import problem_pool
from apportion.types import Rollout


def measure_one(policy, problems, counts, **settings):
    return measure_variances(policy, problems, [counts], **settings)[0]


@pytest.fixture(scope="module")
def uncertain(trained_base):
    """Return six problems that the small base sometimes solves."""
    pool = problem_pool(120, seed=5)
    success = exact_success(trained_base, pool)
    return [problem for problem, p in zip(pool, success, strict=True) if 0.1 < p < 0.9][:6]


def error_of(measured):
    """Return the standard error of the trace variance, by the bootstrap."""
    draws = len(measured.products)
    return measured.resampled(np.random.default_rng(0).multinomial(draws, [1 / draws] * draws, 2000)).std()


def backward(policy, prompts, rollouts):
    """Return the gradient of one batch as the trainer computes it."""
    groups = [
        Group(prompt, tuple(group), np.ones(len(group), bool)) for prompt, group in zip(prompts, rollouts, strict=True)
    ]
    policy.zero_grad(set_to_none=True)
    surrogate_loss(policy, training_rows(groups)).backward()
    return torch.cat([parameter.grad.flatten() for parameter in policy.parameters()]).double().numpy()


def test_it_is_the_variance_of_the_trainers_gradient_on_the_same_rollouts(small_base, uncertain):
    counts, draws, prompts = np.array([5, 3]), 6, [problem.prompt() for problem in uncertain[:2]]
    rollouts = LedgerSampler(small_base, seed=3)(prompts, counts * draws)
    shares = np.zeros((2, draws, small_base.num_parameters()))
    for draw in range(draws):
        batch = [group[draw * n : (draw + 1) * n] for group, n in zip(rollouts, counts, strict=True)]
        for q in range(2):
            alone = [
                batch[q] if q == other else [Rollout(False, completion=batch[other][0].completion)] * counts[other]
                for other in range(2)
            ]
            shares[q, draw] = backward(small_base, prompts, alone)
    expected = shares.var(axis=1, ddof=1).sum(axis=1)
    measured = measure_one(small_base, uncertain[:2], counts, draws=draws, seed=3)
    np.testing.assert_allclose(measured.per_prompt, expected, rtol=1e-3)
    assert measured.trace_variance == pytest.approx(sum(expected), rel=1e-3)


def test_one_prompt_has_the_variance_of_its_u_statistic(small_base, uncertain):
    """The RLOO gradient is a U-statistic with the kernel (r - r')(h - h') / 2, so Hoeffding gives its variance."""
    problem, n, draws = uncertain[0], 5, 300
    moments = score_moments(small_base, [problem], wrong_rollouts=500)
    p, right, wrong = moments.success[0], moments.right[0], moments.wrong[0]
    first = (p * (1 - p) ** 2 * right + (1 - p) * p**2 * wrong - p * p * right) / 4
    second = p * (1 - p) * (right + wrong) / 2
    expected = 2 / (n * (n - 1)) * (2 * (n - 2) * first + second)
    assert moments.variance([n])[0] == pytest.approx(expected)
    measured = measure_one(small_base, [problem], [n], draws=draws, seed=2)
    assert abs(measured.trace_variance - expected) < 3.5 * error_of(measured)
    assert error_of(measured) < expected / 5


def test_least_variance_is_the_best_of_all_allocations():
    right, wrong = np.array([2.0, 1.0, 0.1]), np.array([2.5, 4.0, 60.0])
    moments = Moments(np.array([0.2, 0.5, 0.95]), right, wrong, np.zeros(3), right_mean=right)
    found = least_variance(moments, 15, low=2, high=9)
    every = [(a, b, 15 - a - b) for a in range(2, 10) for b in range(2, 10) if 2 <= 15 - a - b <= 9]
    best = min(every, key=lambda counts: moments.variance(counts).sum())
    assert tuple(found) == best
    with pytest.raises(ValueError, match="low must be at least 2"):
        least_variance(moments, 15, low=1, high=9)


def test_the_bootstrap_counts_draws(small_base, uncertain):
    measured = measure_one(small_base, uncertain, np.full(6, 4), draws=8)
    chosen = np.array([0, 0, 1, 3, 3, 3, 6, 7])
    part = measured.products[np.ix_(chosen, chosen)]
    times = np.stack([np.ones(8, int), np.bincount(chosen, minlength=8)])
    variance = (np.trace(part) - part.sum() / 8) / 7
    assert measured.resampled(times) == pytest.approx([measured.trace_variance, variance])


def test_uniform_beside_itself_has_ratio_one(small_base, uncertain):
    same, again = measure_variances(small_base, uncertain, [np.full(6, 5), lambda rng: np.full(6, 5)], draws=10)
    assert ratio_interval(again, same) == pytest.approx((1.0, 1.0))
    other, fresh = (measure_one(small_base, uncertain, np.full(6, 5), draws=100, seed=seed) for seed in (9, 10))
    low, high = ratio_interval(other, fresh)
    assert low < 1 < high


def test_prompts_without_rollouts_or_variance_add_nothing(small_base, uncertain):
    measured = measure_one(small_base, uncertain[:3], [4, 0, 1], draws=5)
    assert (measured.per_prompt[1:] == 0).all() and measured.per_prompt[0] > 0
    silent = measure_one(small_base, uncertain[:2], [1, 1], draws=5)
    assert silent.trace_variance == 0
    assert np.isnan(ratio_interval(measured, silent)).all()


def test_wrong_settings_are_refused(small_base, uncertain):
    with pytest.raises(ValueError, match="draws must be at least 3, for a variance and its error, got 2"):
        measure_one(small_base, uncertain, np.full(6, 4), draws=2)
    with pytest.raises(ValueError, match=r"counts must be \[6\].*got shape \(5,\)"):
        measure_one(small_base, uncertain, np.full(5, 4))
