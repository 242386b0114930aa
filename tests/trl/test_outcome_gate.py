"""The outcome gate in TRL's trainers: shaping beside a verdict, under TRL's formulas and one of the library."""

from collections import defaultdict

import pytest

from apportion import Uniform
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer
from tests.trl.tiny import Row, assert_rows, group_advantages, ids_of


def digits(completions, **columns):
    return [sum(each.isdigit() for each in text) for text in completions]


WEIGHT = 0.25
SHAPED = {"others": [digits], "verdict": "judge", "allocator": Uniform(), "config": {"reward_weights": [WEIGHT, 1.0]}}


def gated_rows(trainer, step, gate):
    """Return the rows of a step, and the number of its groups of equal outcomes and different rewards."""
    groups, rows, phantoms = defaultdict(list), [], 0
    for call in step.calls:
        groups[call.prompt].append(call)
    for prompt, calls in groups.items():
        right = [call.score for call in calls]
        rewards = [call.score + WEIGHT * digits([call.text])[0] for call in calls]
        if len(set(right)) < 2:
            phantoms += len(set(rewards)) > 1
            rewards = right
        elif gate == "order":
            own = {o: [reward for reward, each in zip(rewards, right, strict=True) if each == o] for o in right}
            rewards = [o + reward - sum(own[o]) / len(own[o]) for reward, o in zip(rewards, right, strict=True)]
        found = zip(calls, group_advantages(trainer, rewards), strict=True)
        rows += [Row(ids_of(prompt), call.ids, advantage) for call, advantage in found]
    return rows, phantoms


@pytest.mark.parametrize("gate", [True, "order"])
@pytest.mark.parametrize(
    ("trainer", "estimator"),
    [(AllocatedGRPOTrainer, None), (AllocatedRLOOTrainer, None), (AllocatedGRPOTrainer, "grpo")],
)
def test_the_loss_sees_gated_advantages(run, trainer, estimator, gate):
    built, watch, history = run(trainer, **SHAPED, estimator=estimator, outcome_gate=gate)
    all_phantoms = 0
    for step, logged in zip(watch.steps, history, strict=True):
        expected, phantoms = gated_rows(built, step, gate)
        assert_rows(step.rows, expected)
        dead = sum(
            not any(row.advantage for row in expected if row.prompt == prompt)
            for prompt in {r.prompt for r in expected}
        )
        assert logged["frac_reward_zero_std"] == dead / 4 and logged["allocation/informative"] == 1 - dead / 4
        all_phantoms += phantoms
    assert all_phantoms > 0


def test_functions_that_are_normalized_alone_train_in_mixed_groups_only(run):
    config = SHAPED["config"] | {"multi_objective_aggregation": "normalize_then_sum", "max_steps": 1}
    (_, free, _), (_, gate, _) = (run(**SHAPED | {"config": config}, outcome_gate=gate) for gate in (False, True))
    dead = {ids_of(p) for p, calls in gate.steps[0].by_prompt.items() if len({call.score for call in calls}) < 2}
    pairs = list(zip(free.steps[0].rows, gate.steps[0].rows, strict=True))
    scales = {round(one.advantage / two.advantage, 3) for one, two in pairs if two.prompt not in dead}
    assert len(scales) == 1  # what the batch is divided by has no dead groups any more
    assert all(abs(two.advantage) < 1e-6 for _, two in pairs if two.prompt in dead)
    assert any(abs(one.advantage) > 0.1 for one, two in pairs if two.prompt in dead)
    with pytest.raises(ValueError, match="outcome_gate must be True or False if each reward function is normalized"):
        run(**SHAPED | {"config": config}, outcome_gate="order")


def test_it_needs_a_verdict(make):
    with pytest.raises(ValueError, match="verdict must name a reward function for outcome_gate"):
        make(AllocatedGRPOTrainer, reward_funcs=[digits, digits], allocator=Uniform(), outcome_gate=True)
