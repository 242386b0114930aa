"""Expected estimates over all outcomes of a policy of one parameter, over what they estimate."""

import numpy as np
import pytest

from apportion import AR3PO, Uniform
from apportion.advantages import sft
from benchmarks.bias_exact import SUCCESS, exact, expected_rollouts, leaves

FAILURE = 1 - SUCCESS
ONE_BY_ONE = AR3PO(6, 1, "none")


@pytest.mark.parametrize(
    ("name", "rule", "weights", "expected"),
    [
        *(("rloo", Uniform(n), "prompt", 1) for n in (2, 5)),
        *(("dr_grpo", Uniform(n), "prompt", (n - 1) / n) for n in (2, 5)),
        # the gradient of log p's expansion up to that of order n: Theorem 2 of the paper for sft, one less for maxrl
        *(("sft", Uniform(n), "prompt", sum(FAILURE**k for k in range(n))) for n in (1, 2, 6)),
        *(("maxrl", Uniform(n), "prompt", sum(FAILURE**k for k in range(n - 1))) for n in (2, 6)),
        *(("reinforce", rule, "sum", 1) for rule in (Uniform(1), AR3PO(2, 4, "none"), ONE_BY_ONE)),
        *(("sequential", rule, "sum", 1) for rule in (Uniform(8), AR3PO(2, 4, "none"), AR3PO(3, 2, "none"))),
        # a first rollout alone in its round does not count
        ("sequential", ONE_BY_ONE, "sum", 1 - 1 / expected_rollouts(leaves(ONE_BY_ONE))),
        # the first stage alone gives the gradient; the second, where the first has failed, half as much on top
        ("sequential", AR3PO(2, 4, "none"), "prompt", 1 + FAILURE**4 / 2),
    ],
)
def test_estimators_have_the_expectation_that_they_say_where_a_success_stops_sampling(name, rule, weights, expected):
    found = exact(leaves(rule), name, weights).ratio
    np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), rtol=1e-10)


def test_sft_imitates_correct_rollouts_alone_and_every_prompt_with_one_weighs_the_same():
    rewards, ids = np.array([1, 0, 0, 0, 1, 1, 0, 1, 0]), np.array([0, 0, 0, 0, 1, 1, 1, 2, 3])
    advantages = sft(rewards, ids)
    assert (advantages[rewards == 0] == 0).all()
    np.testing.assert_allclose(np.bincount(ids, advantages) / np.bincount(ids), [1, 1, 1, 0])
