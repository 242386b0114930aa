import pytest

from apportion.advantages import reinforce
from tests.advantages.bernoulli import until_correct


@pytest.mark.parametrize("baseline", [-1.0, 0.0, 0.3, 2.0])
@pytest.mark.parametrize("stages", [[1], [5], [4, 4], [1, 1, 3]])
def test_it_is_unbiased_for_any_fixed_baseline_whatever_stops_sampling(baseline, stages):
    stopped = until_correct(0.2, stages)
    advantages = reinforce(stopped.rewards, stopped.group_ids, baseline=[baseline] * len(stopped.rewards))
    assert stopped.expect(advantages, "rollout") == pytest.approx(stopped.expected_count * stopped.slope, rel=1e-12)


def test_a_baseline_made_of_the_same_rewards_is_not():
    fixed = until_correct(0.2, [3])
    mean = [fixed.rewards[fixed.group_ids == q].mean() for q in fixed.group_ids]
    advantages = reinforce(fixed.rewards, fixed.group_ids, baseline=mean)
    assert fixed.expect(advantages, "rollout") == pytest.approx(2 * fixed.slope)


@pytest.mark.parametrize("baseline", [[0.5], [[0.5, 0.5]], [0.5, float("nan")]])
def test_a_baseline_of_another_shape_or_without_a_value_is_refused(baseline):
    with pytest.raises(ValueError, match=r"baseline must be \[2\] and finite"):
        reinforce([1.0, 0.0], [0, 0], baseline=baseline)
