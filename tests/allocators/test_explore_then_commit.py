from apportion import Plan, Rollout
from apportion.allocators import ExploreThenCommit
from tests.allocators.builders import graded
from tests.builders import finished, make_batch, make_prompts


def test_all_rest_goes_to_the_mixed_and_there_are_two_rounds():
    rule = ExploreThenCommit(pilots=2, high=5)
    batch = make_batch([[0, 0], [0, 1], [1, 1]])
    assert rule.plan(batch) == Plan([0, 3, 0])
    assert not rule.plan(batch.add(Plan([0, 3, 0]), [[], [Rollout(False)] * 3, []]))


def test_pilots_that_failed_are_paid_for_and_a_prompt_without_outcomes_ends():
    rule = ExploreThenCommit(pilots=4, high=8)
    batch = finished(make_prompts(2), [[], [Rollout(True), Rollout(False)]], [4, 4])
    assert rule.plan(batch) == Plan([0, 4])


def test_graded_rewards_differ_beyond_the_tolerance():
    def planned(rewards, **settings):
        return ExploreThenCommit(pilots=2, high=6, **settings).plan(graded(rewards)).counts.tolist()

    assert planned([0.5, 0.6]) == [4] and planned([0.5, 0.6], tolerance=0.06) == planned([0.5, 0.5]) == [0]
