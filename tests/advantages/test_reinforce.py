import numpy as np
import pytest

from apportion.advantages import dr_grpo, reinforce_plus_plus_baseline, spo, whiten

REWARDS, IDS, TOKENS = np.array([1.0, 0, 0, 1, 1, 0.5]), np.array([0, 0, 0, 1, 1, 2]), np.array([3, 5, 2, 7, 7, 9])


def test_the_baseline_variant_divides_by_one_number_and_keeps_equal_rewards_at_0():
    """Though its lengths make the token mean of the centred rewards differ from 0."""
    advantages = reinforce_plus_plus_baseline(REWARDS, IDS, tokens=TOKENS)
    assert (advantages[3:] == 0).all()
    centred = dr_grpo(REWARDS, IDS)
    assert abs(centred @ TOKENS) > 0.1
    np.testing.assert_allclose(advantages[:3] * np.repeat(centred, TOKENS).std(ddof=1), centred[:3])


def test_within_the_mask_mean_and_variance_are_0_and_1():
    rng = np.random.default_rng(0)
    values, mask = rng.normal(3, 5, (6, 9)), rng.random((6, 9)) < 0.6
    white = whiten(values, mask)
    assert white[mask].mean() == pytest.approx(0, abs=1e-12)
    assert white[mask].var(ddof=1) == pytest.approx(1)
    assert (white[~mask] == 0).all()


@pytest.mark.parametrize("values", [[], [0.1], [0.1] * 7])
def test_equal_values_become_exactly_0(values):
    assert (whiten(values, np.ones(len(values))) == 0).all()


def test_spo_has_mean_0_and_variance_1_over_the_batch_whatever_its_groups():
    baseline = np.linspace(0.1, 0.9, 6)
    advantages = spo(REWARDS, IDS, baseline=baseline)
    differences = REWARDS - baseline
    np.testing.assert_allclose(advantages, (differences - differences.mean()) / np.sqrt(differences.var(ddof=1) + 1e-8))
    np.testing.assert_array_equal(advantages, spo(REWARDS, np.arange(6), baseline=baseline))
