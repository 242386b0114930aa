import logging

from hypothesis import given
from hypothesis import strategies as st

from apportion import DAPO, Plan, Rollout, collect
from apportion.allocators.dapo import mixed
from tests.allocators.builders import graded, source_of
from tests.builders import bernoulli_sampler, finished, make_batch, make_prompts


def test_fresh_prompts_are_drawn_until_enough_are_mixed_and_the_surplus_is_left_out():
    """Draws of 2: none mixed, then one, then two; the fourth mixed group would be one too many."""
    success = [0.0, 1.0, 0.0, 0.5, 0.5, 0.5, 0.5]
    source, draws = source_of(make_prompts(7)[2:])
    allocator = DAPO(rollouts_per_prompt=32, target=2)
    batch = collect(allocator, make_prompts(2), bernoulli_sampler(success), source=source)
    assert draws == [2, 2]
    assert batch.round == 3
    assert batch.asked.tolist() == [32] * 6
    assert [group.prompt.text for group in allocator.groups(batch)] == ["prompt 3", "prompt 4"]
    assert allocator.metrics(batch) == {"mixed": 3, "draws": 3, "capped": 0}


def test_target_and_draw_are_the_size_of_the_first_draw_by_default():
    assert DAPO(rollouts_per_prompt=2).plan(make_batch([[1, 0], [1, 1], [0, 0]])) == Plan([0, 0, 0], fresh=3)
    assert DAPO(rollouts_per_prompt=2, draw=5).plan(make_batch([[1, 0], [1, 1]])) == Plan([0, 0], fresh=5)
    assert not DAPO(rollouts_per_prompt=2).plan(make_batch([[1, 0], [0, 1]]))


def test_the_cap_ends_the_draws_and_is_logged_once_per_batch(caplog):
    source, draws = source_of(make_prompts(40)[4:])
    success = [0.5] + [0.0, 1.0] * 20
    allocator = DAPO(rollouts_per_prompt=32, draw=3, max_draws=5)
    with caplog.at_level(logging.WARNING, logger="apportion"):
        batch = collect(allocator, make_prompts(4), bernoulli_sampler(success), source=source)
        groups = allocator.groups(batch)
        assert not caplog.records
        allocator.observe(batch)
    assert draws == [3, 3, 3, 3]
    assert batch.round == 5
    assert [group.prompt.text for group in groups] == ["prompt 0"]
    assert allocator.metrics(batch) == {"mixed": 1, "draws": 5, "capped": 1}
    (record,) = caplog.records
    assert "1 mixed groups of the 4 wanted, among 16 prompts in 5 draws" in record.getMessage()


def test_a_graded_group_is_kept_if_its_standard_deviation_exceeds_the_tolerance():
    """Two rewards that differ by d have the deviation d / 2. A mean inside (0, 1) is no signal."""
    batch = graded([0.5, 0.5625], [0.5, 0.625], [0.5, 0.75])
    assert [group.prompt.text for group in DAPO().groups(graded([0.7, 0.7], [0.7, 0.8]))] == ["prompt 1"]
    kept = DAPO(rollouts_per_prompt=2, tolerance=0.0625).groups(batch)
    assert [group.prompt.text for group in kept] == ["prompt 2"]
    assert DAPO(rollouts_per_prompt=2, tolerance=0.0625).plan(batch) == Plan([0, 0, 0], fresh=3)
    assert not DAPO(rollouts_per_prompt=2, tolerance=0.0625, target=1).plan(batch)


def test_a_group_of_wrong_rollouts_is_dropped_though_their_rewards_differ():
    """Rewards for format tell them apart. verl's recipe filters by acc for the same reason."""
    shaped = [[Rollout(False, reward=0.0), Rollout(False, reward=0.1)], [Rollout(False), Rollout(True, reward=0.0)]]
    batch = finished(make_prompts(2), shaped)
    assert [group.prompt.text for group in DAPO(rollouts_per_prompt=2).groups(batch)] == ["prompt 1"]


@given(st.lists(st.lists(st.sampled_from([True, False, None]), max_size=6), min_size=1, max_size=6))
def test_verdicts_are_mixed_if_one_is_right_and_one_wrong(outcomes):
    batch = finished(make_prompts(len(outcomes)), [[Rollout(verdict) for verdict in own] for own in outcomes])
    assert mixed(batch).tolist() == [True in own and False in own for own in outcomes]
