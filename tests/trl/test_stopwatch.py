"""The log says what generation, rewards and the allocation itself took, in total and by round."""

import time

import pytest

from apportion import DAPO, HORA, Uniform
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer
from tests.trl.tiny import Judge, mark, trained

PARTS = ("seconds", "seconds_generate", "seconds_reward")
GENERATE, REWARD = 0.02, 0.03
"""Seconds that each round takes at the least."""


class SlowJudge(Judge):
    def __call__(self, *args, **columns):
        time.sleep(REWARD)
        return super().__call__(*args, **columns)


def run(make, trainer, allocator, whole_groups=False, **config):
    """Return the log of a run, and the seconds that each generation batch took at most."""
    judge, took = SlowJudge(mark), []
    built = make(trainer, reward_funcs=[judge], allocator=allocator, whole_groups=whole_groups, config=config)
    single_turn, whole = built._generate_single_turn, built._generate_and_score_completions

    def slow(*args, **settings):
        time.sleep(GENERATE)
        return single_turn(*args, **settings)

    def timed(inputs):
        started = time.perf_counter()
        output = whole(inputs)
        took.append(time.perf_counter() - started)
        return output

    built._generate_single_turn, built._generate_and_score_completions = slow, timed
    return [step for step in trained(built) if "loss" in step], took, judge


@pytest.mark.parametrize("trainer", [AllocatedGRPOTrainer, AllocatedRLOOTrainer])
def test_the_log_has_seconds_by_round(make, trainer):
    log, took, judge = run(make, trainer, HORA(pre_rollouts=3, rollouts_per_prompt=8))
    assert len(log) == len(took) == 3
    for i, (step, most) in enumerate(zip(log, took, strict=True)):
        found = {name.removeprefix("allocation/"): value for name, value in step.items()}
        assert [found[f"round_{k}/rollouts"] for k in (1, 2)] == [len(r) for r in judge.rounds[2 * i : 2 * i + 2]]
        assert "round_3/seconds" not in found
        for k in (1, 2):
            assert found[f"round_{k}/seconds_generate"] >= GENERATE
            assert found[f"round_{k}/seconds_reward"] >= REWARD
            assert found[f"round_{k}/seconds"] > 0
        for part in PARTS[1:]:
            assert found[part] == pytest.approx(found[f"round_1/{part}"] + found[f"round_2/{part}"])
        assert found["round_1/seconds"] + found["round_2/seconds"] < found["seconds"]
        assert sum(found[part] for part in PARTS) <= most
        assert sum(found[part] for part in PARTS) >= 2 * (GENERATE + REWARD)


def test_a_batch_of_one_round_logs_no_rounds(make):
    log, _, _ = run(make, AllocatedGRPOTrainer, Uniform(8))
    for step in log:
        assert step["allocation/seconds_generate"] >= GENERATE and step["allocation/seconds_reward"] >= REWARD
        assert not any("round_" in name for name in step)


def test_rewards_of_whole_groups_are_not_counted_twice(make):
    log, took, _ = run(make, AllocatedGRPOTrainer, Uniform(8), whole_groups=True)
    for step, most in zip(log, took, strict=True):
        assert step["allocation/seconds_reward"] >= REWARD
        assert sum(step[f"allocation/{part}"] for part in PARTS) <= most


def test_an_evaluation_is_not_measured(make):
    built = make(AllocatedGRPOTrainer, allocator=Uniform(8), eval_dataset=None)
    found = built.evaluate(built.train_dataset.select(range(8)))
    assert not any("seconds_" in name and "allocation" in name for name in found)


def test_the_parts_of_a_round_that_is_too_large_for_one_call_are_one_round(make):
    allocator = DAPO(rollouts_per_prompt=8, draw=9, max_draws=2)  # 72 rollouts a round, and at most 32 in one call
    log, _, judge = run(make, AllocatedGRPOTrainer, allocator, max_steps=1)
    (step,) = log
    rounds = int(step["allocation/rounds"])
    assert len(judge.rounds) > rounds > 1
    rollouts = [step[f"allocation/round_{k}/rollouts"] for k in range(1, rounds + 1)]
    assert sum(rollouts) == step["allocation/rollouts"] and f"allocation/round_{rounds + 1}/rollouts" not in step
    assert step["allocation/round_2/seconds_reward"] >= 3 * REWARD
