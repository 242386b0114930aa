import numpy as np
import pytest

from apportion.advantages import dr_grpo, reinforce_plus_plus, reinforce_plus_plus_baseline

REWARDS, IDS, TOKENS = np.array([1.0, 0, 0, 1, 1, 0.5]), np.array([0, 0, 0, 1, 1, 2]), np.array([3, 5, 2, 7, 7, 9])


def test_over_tokens_the_advantages_have_mean_0_and_variance_1():
    over_tokens = np.repeat(reinforce_plus_plus(REWARDS, IDS, tokens=TOKENS), TOKENS)
    assert over_tokens.mean() == pytest.approx(0, abs=1e-12)
    assert over_tokens.var(ddof=1) == pytest.approx(1)


def test_groups_do_not_matter_without_a_baseline():
    other = reinforce_plus_plus(REWARDS, np.zeros(6, int), tokens=TOKENS)
    np.testing.assert_array_equal(reinforce_plus_plus(REWARDS, IDS, tokens=TOKENS), other)


def test_the_baseline_variant_divides_by_one_number_and_keeps_equal_rewards_at_0():
    """Though its lengths make the token mean of the centred rewards differ from 0."""
    advantages = reinforce_plus_plus_baseline(REWARDS, IDS, tokens=TOKENS)
    assert (advantages[3:] == 0).all()
    centred = dr_grpo(REWARDS, IDS)
    assert abs(centred @ TOKENS) > 0.1
    np.testing.assert_allclose(advantages[:3] * np.repeat(centred, TOKENS).std(ddof=1), centred[:3])


@pytest.mark.parametrize("estimator", [reinforce_plus_plus, reinforce_plus_plus_baseline])
def test_lengths_are_one_a_rollout(estimator):
    with pytest.raises(ValueError, match=r"tokens must be \[6\] and finite"):
        estimator(REWARDS, IDS, tokens=[3, 4])
