"""Weighted means of the batch as baselines: expectations and variances as sums over all outcomes."""

from itertools import product

import numpy as np
import pytest

from apportion.advantages import batch_optimal, dr_grpo, group_optimal, opo, rloo
from tests.test_baselines import Bandit

SOLVED, MEDIUM, HARD = [18, 1, 1], [5, 3, 2], [1, 4, 5]
"""Weights of three answers, of which the first is right: success .9, .5 and .1."""


def moments(policies, counts, estimate):
    """Return mean [policies, K] and variance of the sums of advantage times score, over all outcomes of a batch.

    ``estimate`` takes rewards, group ids and score norms.
    """
    owners = np.repeat(np.arange(len(policies)), counts)
    mean, square = np.zeros((len(policies), 3)), 0.0
    for drawn in product(range(3), repeat=len(owners)):
        pairs = [(policies[q], k) for q, k in zip(owners, drawn, strict=True)]
        chance = np.prod([policy.pi[k] for policy, k in pairs])
        rewards, norms = np.array([[policy.rewards[k], policy.norms[k]] for policy, k in pairs]).T
        scores = np.array([policy.scores[k] for policy, k in pairs])
        advantages = estimate(rewards, owners, norms)
        sums = np.array([(advantages * (owners == q)) @ scores for q in range(len(policies))])
        mean += chance * sums
        square += chance * (sums**2).sum()
    return mean, square - (mean**2).sum()


def of_norms(estimator):
    return lambda rewards, ids, norms: estimator(rewards, ids, score_norms=norms)


def test_within_the_group_and_the_batch_the_estimate_is_unbiased_for_groups_of_any_size():
    policies, counts = [Bandit(weights, [1, 0, 0]) for weights in (SOLVED, MEDIUM, HARD)], [1, 2, 3]
    within = moments(policies[1:2], [4], of_norms(group_optimal))[0]
    np.testing.assert_allclose(within[0], 4 * (policies[1].pi @ policies[1].gradients(0.0)), atol=1e-12)
    mean, _ = moments(policies, counts, of_norms(batch_optimal))
    for own, policy, count in zip(mean, policies, counts, strict=True):
        np.testing.assert_allclose(own, count * (policy.pi @ policy.gradients(0.0)), atol=1e-12)


@pytest.mark.parametrize(
    ("weights", "count", "estimator", "ratio"),
    [
        ([SOLVED], 4, group_optimal, 1.062),
        ([MEDIUM], 4, group_optimal, 0.875),
        ([HARD], 4, group_optimal, 1.198),
        ([SOLVED, MEDIUM, HARD], 2, batch_optimal, 0.446),
    ],
)
def test_the_variance_over_that_of_rloo_is_that_of_the_docstring(weights, count, estimator, ratio):
    policies, counts = [Bandit(each, [1, 0, 0]) for each in weights], [count] * len(weights)
    plain = moments(policies, counts, lambda rewards, ids, _: rloo(rewards, ids))[1]
    assert moments(policies, counts, of_norms(estimator))[1] / plain == pytest.approx(ratio, abs=5e-4)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("length", [1, 4])
def test_opo_sees_its_own_rollout_and_its_bias_is_that_of_its_docstring(p, length):
    rewards, ids = np.array([1, 1, 1, 0, 0, 1, 0, 0]), np.repeat(range(4), 2)
    sums = np.bincount(ids, opo(rewards, ids, tokens=np.where(rewards, 1, length)) * (rewards - p))
    mixed = p * (1 - p)
    found = sums @ [p**2, mixed, mixed, (1 - p) ** 2] / (2 * mixed)
    assert found == pytest.approx((length * (1 - p) + p) / (length + 1))


def test_every_baseline_is_the_weighted_mean_that_it_should_be():
    rng = np.random.default_rng(1)
    rewards, ids, norms = rng.normal(size=30), rng.integers(6, size=30), rng.random(30) ** 4
    group, batch = group_optimal(rewards, ids, score_norms=norms), batch_optimal(rewards, ids, score_norms=norms)
    for i in range(30):
        mine, other = (ids == ids[i]) & (np.arange(30) != i), ids != ids[i]
        assert group[i] == pytest.approx(rewards[i] - np.average(rewards[mine], weights=norms[mine]))
        assert batch[i] == pytest.approx(rewards[i] - np.average(rewards[other], weights=norms[other]))


def test_a_norm_far_above_the_others_does_not_drown_them():
    """Subtracting it from the total would leave rounding errors in place of the others."""
    advantages = group_optimal([1, 1, 0, 0], [0] * 4, score_norms=[1e12, 1e-9, 1e-9, 2e-9])
    assert advantages[0] == pytest.approx(0.75)
    assert batch_optimal([1, 1, 0, 0], range(4), score_norms=[1e12, 1e-9, 1e-9, 2e-9])[0] == pytest.approx(0.75)


def test_without_any_norm_the_plain_mean_counts():
    rewards, ids, zero = [1, 0, 0, 1], [0, 0, 0, 1], [0.0] * 4
    np.testing.assert_array_equal(group_optimal(rewards, ids, score_norms=zero), rloo(rewards, ids))
    np.testing.assert_array_equal(opo(rewards, ids, tokens=zero), dr_grpo(rewards, ids))
    assert batch_optimal(rewards, ids, score_norms=zero) == pytest.approx([0, -1, -1, 2 / 3])
