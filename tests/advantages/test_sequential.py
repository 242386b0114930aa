import numpy as np
import pytest

from apportion.advantages import sequential
from tests.advantages.bernoulli import until_correct


def of(outcomes):
    return sequential(outcomes.rewards, outcomes.group_ids, rounds=outcomes.rounds)


@pytest.mark.parametrize("p", [0.1, 0.3, 0.7])
@pytest.mark.parametrize("stages", [[4, 4], [2, 6], [2, 1, 1, 4], [8]])
def test_the_sum_is_unbiased_for_the_count_weighted_gradient_where_outcomes_stop_sampling(p, stages):
    stopped = until_correct(p, stages)
    assert stopped.expect(of(stopped), "rollout") == pytest.approx(stopped.expected_count * stopped.slope, rel=1e-12)


def test_dividing_by_the_realised_count_brings_the_bias_back():
    """The first stage alone gives grad p; the second, where the first has failed, half as much on top."""
    stopped = until_correct(0.1, [4, 4])
    assert stopped.expect(of(stopped), "prompt") / stopped.slope == pytest.approx(1 + 0.9**4 / 2)


@pytest.mark.parametrize("stages", [[1, 3, 4], [1] * 6])
def test_a_first_rollout_alone_in_its_round_does_not_count(stages):
    stopped = until_correct(0.3, stages)
    assert stopped.expect(of(stopped), "rollout") == pytest.approx(
        (stopped.expected_count - 1) * stopped.slope, rel=1e-12
    )


def test_every_advantage_is_the_reward_less_the_mean_of_the_others_so_far():
    rng = np.random.default_rng(2)
    rewards, ids, rounds = rng.normal(size=30), rng.integers(4, size=30), rng.integers(3, size=30)
    for i, advantage in enumerate(sequential(rewards, ids, rounds=rounds)):
        others = (ids == ids[i]) & (rounds <= rounds[i]) & (np.arange(30) != i)
        assert advantage == pytest.approx(rewards[i] - rewards[others].mean() if others.any() else 0.0)
