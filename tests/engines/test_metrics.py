import numpy as np
import pytest

from apportion.engines.metrics import allocation_metrics
from apportion.types import Batch, Belief, Group, Plan, Prompt, Rollout


def metrics_of(*groups, estimator="rloo"):
    prompts = [Prompt(str(place)) for place in range(len(groups))]
    batch = Batch.start(prompts, Belief.uniform(len(prompts)))
    batch = batch.add(Plan(np.array([len(own) for own in groups])), groups)
    own = [Group(prompt, rollouts) for prompt, rollouts in zip(prompts, groups, strict=True)]
    return allocation_metrics(batch, own, estimator)


def rewards(*values):
    return [Rollout(reward=value) for value in values]


def test_the_signal_is_the_mean_over_rollouts_of_their_groups_variance():
    found = metrics_of(rewards(0, 1), rewards(1, 1, 1), rewards(0, 0, 2, 2, 1))
    assert found["signal"] == pytest.approx((2 * 0.5 + 3 * 0 + 5 * 1) / 10)
    assert found["informative"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("estimator", ["reinforce", "batch_optimal"])
def test_with_a_baseline_a_group_of_equal_rewards_has_a_signal(estimator):
    assert metrics_of(rewards(0, 0), rewards(1, 1), estimator=estimator)["signal"] == pytest.approx(0.25)
    assert metrics_of(rewards(0, 0), rewards(1, 1))["signal"] == 0


def test_equal_totals_with_unequal_parts_have_a_signal():
    parts = [[Rollout(reward=1.0, components=parts) for parts in ((0.0, 1.0), (1.0, 0.0))]]
    found = metrics_of(*parts)
    assert found["signal"] == pytest.approx(0.5) and found["informative"] == 1


@pytest.mark.parametrize("groups", [[rewards(1.0)], [rewards(0.0), rewards(1.0)]])
def test_single_rollouts_have_no_signal_of_their_group(groups):
    assert metrics_of(*groups)["signal"] == 0
