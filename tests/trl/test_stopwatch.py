"""The log says what generation, rewards and the allocation itself took, in total and by round."""

import time

import pytest

from apportion import DAPO, Uniform
from apportion.trl import AllocatedGRPOTrainer
from tests.trl.tiny import Judge, mark, trained

PARTS = ("seconds", "seconds_generate", "seconds_reward")
GENERATE, REWARD = 0.02, 0.03
"""Seconds that each round takes at the least."""


class SlowJudge(Judge):
    def __call__(self, *args, **columns):
        time.sleep(REWARD)
        return super().__call__(*args, **columns)


def timed(make, allocator, **given):
    """Return the allocation's log of each step of a run, and the judge."""
    judge = SlowJudge(mark)
    built = make(AllocatedGRPOTrainer, reward_funcs=[judge], allocator=allocator, **given)
    single_turn = built._generate_single_turn

    def slow(*args, **settings):
        time.sleep(GENERATE)
        return single_turn(*args, **settings)

    built._generate_single_turn = slow
    log = [step for step in trained(built) if "loss" in step]
    return [{name.removeprefix("allocation/"): value for name, value in step.items()} for step in log], judge


@pytest.mark.parametrize("whole_groups", [False, True])
def test_a_batch_of_one_round_logs_no_rounds_and_no_rewards_twice(make, whole_groups):
    started = time.perf_counter()
    log, judge = timed(make, Uniform(8), whole_groups=whole_groups, config={"max_steps": 2})
    assert len(log) == 2 and not any("round_" in name for found in log for name in found)
    assert all(found["seconds_generate"] >= GENERATE and found["seconds"] > 0 for found in log)
    assert sum(found["seconds_reward"] for found in log) >= len(judge.rounds) * REWARD
    assert sum(found[part] for found in log for part in PARTS) < time.perf_counter() - started


def test_the_log_has_seconds_by_round_and_a_round_that_is_too_large_for_one_call_is_one(make):
    allocator = DAPO(rollouts_per_prompt=8, draw=9, max_draws=2)  # 72 rollouts a round, and at most 32 in one call
    (found,), judge = timed(make, allocator, config={"max_steps": 1})
    rounds = int(found["rounds"])
    assert len(judge.rounds) > rounds > 1 and f"round_{rounds + 1}/rollouts" not in found
    by_round = {part: [found[f"round_{k}/{part}"] for k in range(1, rounds + 1)] for part in ("rollouts", *PARTS)}
    assert sum(by_round["rollouts"]) == found["rollouts"] and by_round["seconds_reward"][1] >= 3 * REWARD
    assert min(by_round["seconds_generate"]) >= GENERATE and min(by_round["seconds"]) > 0
    for part in PARTS:
        assert sum(by_round[part]) == pytest.approx(found[part])
