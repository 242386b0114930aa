"""The variance of a gradient as measured, in closed form, and by the trainer's own backward pass."""

import numpy as np
import pytest
import torch

from apportion import Group
from apportion.lab.policy.base import base_policy
from apportion.lab.policy.exact import exact_success
from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.training.loss import surrogate_loss, training_rows
from apportion.lab.world.task import Problem, problem_pool
from apportion.types import Rollout
from benchmarks.gradients import (
    Moments,
    least_variance,
    ratio_interval,
    resampled,
    score_moments,
    share_products,
    trace_variance,
)

FORKED = Problem(7, ("+3", "*7"), ("-2", "+4"))


def error_of(products):
    """Return the standard error of the total variance, by the bootstrap."""
    return trace_variance(products, resampled(len(products))).std()


@pytest.fixture(scope="module")
def policy(small_base_folder):
    return base_policy(small_base_folder)


@pytest.fixture(scope="module")
def uncertain(policy):
    """Return six problems that the small base sometimes solves."""
    pool = problem_pool(120, seed=5)
    success = exact_success(policy, pool)
    return [problem for problem, p in zip(pool, success, strict=True) if 0.1 < p < 0.9][:6]


def backward(policy, prompts, rollouts):
    """Return the gradient of one batch as the trainer computes it."""
    groups = [Group(prompt, tuple(group)) for prompt, group in zip(prompts, rollouts, strict=True)]
    policy.zero_grad(set_to_none=True)
    surrogate_loss(policy, training_rows(groups)).backward()
    return torch.cat([parameter.grad.flatten() for parameter in policy.parameters()]).double().numpy()


def test_it_is_the_variance_of_the_trainers_gradient_on_the_same_rollouts(policy, uncertain):
    counts, draws, prompts = np.array([5, 3]), 6, [problem.prompt() for problem in uncertain[:2]]
    rollouts = LedgerSampler(policy, seed=3)(prompts, counts * draws)
    shares = np.zeros((2, draws, policy.num_parameters()))
    for draw in range(draws):
        batch = [group[draw * n : (draw + 1) * n] for group, n in zip(rollouts, counts, strict=True)]
        for q in range(2):
            alone = [
                batch[q] if q == other else [Rollout(False, completion=batch[other][0].completion)] * counts[other]
                for other in range(2)
            ]
            shares[q, draw] = backward(policy, prompts, alone)
    [products] = share_products(policy, uncertain[:2], [counts], draws=draws, seed=3)
    assert trace_variance(products) == pytest.approx(shares.var(axis=1, ddof=1).sum(), rel=1e-3)


def test_one_prompt_has_the_variance_of_its_u_statistic(policy, uncertain):
    """The RLOO gradient is a U-statistic with the kernel (r - r')(h - h') / 2, so Hoeffding gives its variance."""
    problem, n = uncertain[0], 5
    moments = score_moments(policy, [problem], wrong_rollouts=500)
    p, right, wrong = moments.success[0], moments.right[0], moments.wrong[0]
    first = (p * (1 - p) ** 2 * right + (1 - p) * p**2 * wrong - p * p * right) / 4
    second = p * (1 - p) * (right + wrong) / 2
    expected = 2 / (n * (n - 1)) * (2 * (n - 2) * first + second)
    assert moments.variance([n])[0] == pytest.approx(expected)
    [measured] = share_products(policy, [problem], [[n]], draws=300, seed=2)
    assert abs(trace_variance(measured) - expected) < 3.5 * error_of(measured)
    assert error_of(measured) < expected / 5


def test_the_bootstrap_counts_draws_and_uniform_beside_itself_has_ratio_one(policy, uncertain):
    same, again = share_products(policy, uncertain, [np.full(6, 5), lambda rng: np.full(6, 5)], draws=8)
    assert ratio_interval(again, same) == pytest.approx((1.0, 1.0))
    chosen = np.array([0, 0, 1, 3, 3, 3, 6, 7])
    part, times = same[np.ix_(chosen, chosen)], np.bincount(chosen, minlength=8)
    assert trace_variance(same, times) == pytest.approx((np.trace(part) - part.sum() / 8) / 7)
    ((alone,), (beside,)) = (
        share_products(policy, problems, [counts], draws=5)
        for problems, counts in ((uncertain[:1], [4]), (uncertain[:2], [4, 1]))
    )
    # A single rollout has no gradient, and half of the weight.
    assert trace_variance(alone) > 0 and beside == pytest.approx(alone / 4, rel=1e-3, abs=1e-9)


def test_least_variance_is_the_best_of_all_allocations():
    right, wrong = np.array([2.0, 1.0, 0.1]), np.array([2.5, 4.0, 60.0])
    moments = Moments(np.array([0.2, 0.5, 0.95]), right, wrong, np.zeros(3), right_mean=right)
    found = least_variance(moments, 15, low=2, high=9)
    every = [(a, b, 15 - a - b) for a in range(2, 10) for b in range(2, 10) if 2 <= 15 - a - b <= 9]
    assert tuple(found) == min(every, key=lambda counts: moments.variance(counts).sum())


def test_moments_of_a_forked_problem_give_its_measured_variance(policy):
    moments = score_moments(policy, [FORKED], wrong_rollouts=100)
    assert moments.success == pytest.approx(exact_success(policy, [FORKED]))
    assert moments.right_mean[0] < 0.99 * moments.right[0]  # its solutions differ, and so do their gradients
    [measured] = share_products(policy, [FORKED], [[4]], draws=80, seed=2)
    error = np.hypot(error_of(measured), moments.slope([4])[0] * moments.wrong_error[0])
    assert abs(trace_variance(measured) - moments.variance([4])[0]) < 3.5 * error
    assert error < trace_variance(measured) / 3
    single = score_moments(policy, [Problem(7, ("+3",))], wrong_rollouts=5)
    assert single.right_mean == pytest.approx(single.right)
