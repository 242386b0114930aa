import numpy as np
import pytest

from apportion import Plan, Rollout, collect
from apportion.allocators import ExploreThenCommit
from tests.builders import bernoulli_sampler, make_batch, make_prompts


def test_all_rest_goes_to_the_mixed_and_there_are_two_rounds():
    rule = ExploreThenCommit(pilots=2, high=5)
    batch = make_batch([[0, 0], [0, 1], [1, 1]])
    assert rule.plan(batch) == Plan([0, 3, 0])
    assert not rule.plan(batch.add(Plan([0, 3, 0]), [[], [Rollout(False)] * 3, []]))


def test_pilots_that_failed_are_paid_for_and_a_prompt_without_outcomes_ends():
    rule = ExploreThenCommit(pilots=4, high=8)
    batch = rule.start(make_prompts(2)).add(Plan([4, 4]), [[], [Rollout(True), Rollout(False)]])
    assert rule.plan(batch) == Plan([0, 4])


def test_graded_rewards_differ_beyond_the_tolerance():
    def planned(rewards, **settings):
        rule = ExploreThenCommit(pilots=2, high=6, **settings)
        batch = rule.start(make_prompts(1)).add(Plan([2]), [[Rollout(reward=reward) for reward in rewards]])
        return rule.plan(batch).counts.tolist()

    assert planned([0.5, 0.6]) == [4] and planned([0.5, 0.6], tolerance=0.06) == planned([0.5, 0.5]) == [0]


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.5])
def test_expected_rollouts_are_the_closed_form(rate):
    rule, prompts = ExploreThenCommit(pilots=3, high=12), 1500
    batch = collect(rule, make_prompts(prompts), bernoulli_sampler([rate] * prompts, seed=1))
    commits = 1 - rate**3 - (1 - rate) ** 3
    error = 9 * np.sqrt(commits * (1 - commits) / prompts)
    assert abs(batch.asked.mean() - (3 + 9 * commits)) <= 4 * error
    assert set(batch.asked.tolist()) <= {3, 12}
