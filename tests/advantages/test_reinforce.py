import numpy as np
import pytest

from apportion.advantages import dr_grpo, reinforce, reinforce_plus_plus, reinforce_plus_plus_baseline, spo, whiten
from tests.advantages.bernoulli import until_correct

REWARDS, IDS, TOKENS = np.array([1.0, 0, 0, 1, 1, 0.5]), np.array([0, 0, 0, 1, 1, 2]), np.array([3, 5, 2, 7, 7, 9])


@pytest.mark.parametrize("baseline", [-1.0, 0.0, 0.3, 2.0])
@pytest.mark.parametrize("stages", [[1], [5], [4, 4], [1, 1, 3]])
def test_it_is_unbiased_for_any_fixed_baseline_whatever_stops_sampling(baseline, stages):
    stopped = until_correct(0.2, stages)
    advantages = reinforce(stopped.rewards, stopped.group_ids, baseline=[baseline] * len(stopped.rewards))
    assert stopped.expect(advantages, "rollout") == pytest.approx(stopped.expected_count * stopped.slope, rel=1e-12)


@pytest.mark.parametrize("baseline", [[0.5], [[0.5, 0.5]], [0.5, float("nan")]])
def test_a_baseline_of_another_shape_or_without_a_value_is_refused(baseline):
    with pytest.raises(ValueError, match=r"baseline must be \[2\] and finite"):
        reinforce([1.0, 0.0], [0, 0], baseline=baseline)


def test_over_tokens_the_advantages_have_mean_0_and_variance_1():
    over_tokens = np.repeat(reinforce_plus_plus(REWARDS, IDS, tokens=TOKENS), TOKENS)
    assert over_tokens.mean() == pytest.approx(0, abs=1e-12)
    assert over_tokens.var(ddof=1) == pytest.approx(1)


def test_the_baseline_variant_divides_by_one_number_and_keeps_equal_rewards_at_0():
    """Though its lengths make the token mean of the centred rewards differ from 0."""
    advantages = reinforce_plus_plus_baseline(REWARDS, IDS, tokens=TOKENS)
    assert (advantages[3:] == 0).all()
    centred = dr_grpo(REWARDS, IDS)
    assert abs(centred @ TOKENS) > 0.1
    np.testing.assert_allclose(advantages[:3] * np.repeat(centred, TOKENS).std(ddof=1), centred[:3])


@pytest.mark.parametrize("estimator", [reinforce_plus_plus, reinforce_plus_plus_baseline])
def test_tokens_must_be_one_per_rollout(estimator):
    with pytest.raises(ValueError, match=r"tokens must be \[6\] and finite"):
        estimator(REWARDS, IDS, tokens=[3, 4])


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


@pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0], [1.0, np.inf]])
def test_weights_that_count_nothing_are_refused(weights):
    with pytest.raises(ValueError, match="weights must be at least 0"):
        whiten([1.0, 2.0], weights)


def test_spo_has_mean_0_and_variance_1_over_the_batch_whatever_its_groups():
    baseline = np.linspace(0.1, 0.9, 6)
    advantages = spo(REWARDS, IDS, baseline=baseline)
    differences = REWARDS - baseline
    assert advantages.mean() == pytest.approx(0, abs=1e-12)
    assert advantages.var(ddof=1) == pytest.approx(1)
    np.testing.assert_allclose(advantages, (differences - differences.mean()) / np.sqrt(differences.var(ddof=1) + 1e-8))
    np.testing.assert_array_equal(advantages, spo(REWARDS, np.arange(6), baseline=baseline))
