"""The variance of a gradient as measured, in closed form, and by the trainer's own backward pass."""

import numpy as np
import pytest
import torch

from apportion import Group, Uniform
from apportion.lab.policy.base import base_policy
from apportion.lab.policy.exact import exact_success
from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.training.loss import surrogate_loss, training_rows
from apportion.lab.world.task import problem_pool
from apportion.scheduler import TrainerAllocation
from apportion.types import Rollout
from benchmarks.gradients import share_products, trace_variance


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
    surrogate_loss(policy, training_rows(groups, TrainerAllocation(allocator=Uniform(2)))).backward()
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
