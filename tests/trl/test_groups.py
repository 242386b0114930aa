"""The rows that the loss sees in ``trainer.train()``, under a rule of each kind.

Rollouts are identified by their prompt and tokens, as the reward function and the loss saw them. Groups, rewards and
advantages are computed again from these alone.
"""

import math

import numpy as np
import pytest
import torch

from apportion import AR3PO, DAPO, OptPO
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer
from tests.trl.tiny import (
    LENGTH,
    TERMS,
    Judge,
    Row,
    assert_gradient,
    assert_rows,
    direct_gradient,
    gradient_of,
    group_advantages,
    hora,
    ids_of,
    make_questions,
    mark,
    policy_with,
    whole_groups,
)

QUESTIONS = make_questions(16)
EASE_OF = {row["prompt"]: row["k"] for row in QUESTIONS}
GROUP, RETAINED = 6, 8


def rewarded(calls):
    """Return rewards of ``calls``, scored again from the text."""
    rewards = [mark(call.text, EASE_OF[call.prompt]) for call in calls]
    assert rewards == [call.score for call in calls]
    return rewards


def assert_chunks(step, rows, built):
    """Micro-batches have equally many rows, at most those that TRL was told, and no more masked rows than necessary."""
    steps, sizes = built.args.steps_per_generation, [len(chunk["advantages"]) for chunk in step.chunks]
    assert max(sizes) <= built.args.per_device_train_batch_size and max(sizes) - min(sizes) <= 1
    assert sum(sizes) == steps * max(1, -(-rows // steps))
    assert step.padding == sum(sizes) - rows


def test_two_updates_a_batch_see_true_groups(run):
    """The second batch has the prompts of the first again. ``test_modes`` has one update, ``test_penalty`` RLOO."""
    config = {"max_steps": 4, "steps_per_generation": 8, "per_device_train_batch_size": 4}
    built, watch, _ = run(config=config, allocator=hora(), questions=QUESTIONS.select((1, 3, 5, 7)))
    assert len(watch.steps) == 2
    for step in watch.steps:
        rewarded(step.calls)
        assert_rows(step.rows, whole_groups(built, step))
        assert_chunks(step, 32, built)
        assert len(step.rows) == 32 and not step.padding
    assert any(len({len(calls) for calls in step.by_prompt.values()}) > 1 for step in watch.steps)


def test_fresh_prompts_take_the_place_of_groups_that_teach_nothing(run):
    """They come from a stream here, elsewhere from a data set."""
    rule = DAPO(rollouts_per_prompt=GROUP, draw=3, max_draws=3)
    built, watch, _ = run(config={"max_steps": 2}, allocator=rule, questions=QUESTIONS.to_iterable_dataset())
    for step in watch.steps:
        groups = list(step.by_prompt.values())
        assert all(len(calls) == GROUP for calls in groups)
        mixed = [calls for calls in groups if 0 < sum(rewarded(calls)) < GROUP][:4]
        expected = []
        for calls in mixed:  # the first ones, as many as the batch had prompts at first
            advantages = group_advantages(built, rewarded(calls))
            expected += [Row(ids_of(c.prompt), c.ids, a) for c, a in zip(calls, advantages, strict=True)]
        assert_rows(step.rows, expected)
        assert_chunks(step, len(expected), built)
        full = [int(chunk["completion_mask"].any(dim=1).sum()) for chunk in step.chunks]
        assert max(full) - min(full) <= 1  # masked rows are spread over all micro-batches
    assert any(len(step.by_prompt) > 4 for step in watch.steps)


def read(text):
    """Return the kind of the first character, so that there are few answers."""
    return None if not text or text[0] in "+ " else "number" if text[0].isdigit() else "letter"


def test_label_free_rewards_are_agreement_with_the_most_frequent_answer(run):
    rule = OptPO(min_samples=RETAINED, max_samples=18, exceedances=2, wave="free")
    built, watch, history = run(config={"max_steps": 2}, allocator=rule, questions=QUESTIONS, extract=read)
    for step, logged in zip(watch.steps, history, strict=True):
        expected, column, groups = [], {}, []
        for prompt, calls in step.by_prompt.items():
            answers = [read(call.text) for call in calls]
            numbers, letters = answers.count("number"), answers.count("letter")
            column[prompt] = iter([math.nan] * len(calls))
            if numbers == letters:
                continue
            label = "number" if numbers > letters else "letter"
            retained = calls[:RETAINED]
            groups.append([float(read(call.text) == label) for call in retained])
            column[prompt] = iter(groups[-1] + [math.nan] * (len(calls) - RETAINED))
            advantages = group_advantages(built, groups[-1])
            expected += [Row(ids_of(prompt), c.ids, a) for c, a in zip(retained, advantages, strict=True)]
        assert groups
        assert_rows(step.rows, expected)
        assert_chunks(step, len(expected), built)
        rewards = {"agreement": np.concatenate(groups), "judge": np.array([call.score for call in step.calls])}
        wanted = {f"rewards/{each}/mean": values.mean() for each, values in rewards.items()}
        wanted |= {f"rewards/{each}/std": values.std(ddof=1) for each, values in rewards.items()}
        wanted |= {"reward": wanted["rewards/agreement/mean"]}
        wanted["frac_reward_zero_std"] = np.mean([len(set(own)) == 1 for own in groups])
        assert {metric: logged[metric] for metric in wanted} == pytest.approx(wanted)
        column = [next(column[call.prompt]) for call in step.calls]
        assert step.table["agreement"] == pytest.approx(column, nan_ok=True)


@pytest.mark.parametrize("reuse", ["stop_gradient", "replay"])
def test_a_response_of_an_earlier_step_replaces_the_last_wrong_one(run, reuse):
    """At a high learning rate. ``test_reuse`` has the probabilities of such rows."""
    rule, questions = AR3PO(stages=2, rollouts_per_stage=2, reuse=reuse), QUESTIONS.select([1, 2, 3, 10])
    built, watch, _ = run(config={"learning_rate": 3e-3, "max_steps": 5}, allocator=rule, questions=questions)
    earlier, times = {}, 0
    for step in watch.steps:
        rows, expected, shown = step.rows, [], {}
        for prompt, calls in step.by_prompt.items():
            absent = earlier.get(prompt, set()) - {call.ids for call in calls}
            ids, rewards = [call.ids for call in calls], rewarded(calls)
            replaces = bool(absent) and not any(rewards)
            if replaces:
                times += 1
                found = [row.ids for row in rows if row.prompt == ids_of(prompt) and row.ids in absent]
                assert len(found) == (reuse != "stop_gradient")
                ids, rewards = ids[:-1] + found, [*rewards[:-1], 1.0]
            advantages = group_advantages(built, rewards)
            expected += [Row(ids_of(prompt), own, a) for own, a in zip(ids, advantages, strict=False)]
            shown[prompt] = iter([*advantages[:-1], 0.0] if replaces else advantages)
        assert_rows(rows, expected)
        assert_chunks(step, len(expected), built)
        assert step.table["advantages"] == pytest.approx([next(shown[call.prompt]) for call in step.calls], abs=1e-5)
        for call in step.calls:
            if call.score:
                earlier.setdefault(call.prompt, set()).add(call.ids)
    assert times > 0


FEW = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8, "num_generations": 2, "max_steps": 1}
"""Eight micro-batches for four prompts: if two groups are kept, half of the micro-batches are all masked."""


def train_few(run, **settings):
    config = FEW | {"max_grad_norm": 0.0} | settings
    _, watch, _ = run(config=config, allocator=DAPO(rollouts_per_prompt=2, target=2, max_draws=4))
    (step,), ((weights, gradient),) = watch.steps, watch.updates
    assert step.padding == 4 == len(step.rows)
    return step.rows, weights, gradient


@pytest.mark.parametrize("loss", ["bnpo", "dapo"])
def test_micro_batches_that_are_all_masked_change_no_gradient(run, loss):
    """bnpo is a mean over micro-batches, and with one row each a mean over rows."""
    rows, weights, gradient = train_few(run, loss_type=loss)
    assert_gradient(gradient, direct_gradient(weights, rows, TERMS["grpo" if loss == "bnpo" else loss]))


def test_masked_rows_do_not_change_the_entropy_bonus(run):
    try:
        (_, _, without), (rows, weights, gradient) = (train_few(run, entropy_coef=each) for each in (0.0, 1.0))
    except TypeError:
        pytest.skip("this version of TRL has no entropy bonus")
    policy, total = policy_with(weights), 0.0
    for row in rows:
        logits = policy(torch.tensor([[*row.prompt, *row.ids]])).logits[0, len(row.prompt) - 1 : -1]
        distribution = torch.log_softmax(logits, -1)
        total = total + (distribution.exp() * distribution).sum(-1).mean() / len(rows)
    total.backward()
    assert_gradient(gradient - without, gradient_of(policy))


def digits(completion, k):
    return sum(character.isdigit() for character in completion) / LENGTH


def others(completion, k):
    return 2 - 2 * digits(completion, k)  # with half the weight every total is 2


def test_equal_totals_of_unequal_rewards_teach_if_each_is_normalised(run):
    """GDPO: 2 x + y is 2 everywhere, and 2 z(x) + z(y) = z(x) is not. If the sum is normalised nothing is learned."""
    logged = {}
    for aggregation in ("normalize_then_sum", "sum_then_normalize"):
        config = {"multi_objective_aggregation": aggregation, "reward_weights": [1.0, 0.5], "max_steps": 1}
        given = {"others": [Judge(digits, name="digits")], "judge": Judge(others, name="others")}
        _, _, (logged[aggregation],) = run(config=config, allocator=DAPO(rollouts_per_prompt=8, max_draws=2), **given)
    gdpo, grpo = logged["normalize_then_sum"], logged["sum_then_normalize"]
    assert gdpo["allocation/informative"] == 1 and gdpo["grad_norm"] > 0
    assert grpo["allocation/informative"] == 0 == grpo["grad_norm"]


def test_rewards_that_rloo_clips_to_one_value_are_dropped(run):
    above = Judge(lambda completion, k: 1 + digits(completion, k), name="above")
    given = {"judge": above, "allocator": DAPO(rollouts_per_prompt=8, max_draws=2)}
    _, _, (logged,) = run(AllocatedRLOOTrainer, config={"reward_clip_range": (0.0, 0.5), "max_steps": 1}, **given)
    assert logged["allocation/mixed"] == 0


@pytest.mark.parametrize(("trainer", "weighting"), [(AllocatedGRPOTrainer, "token"), (AllocatedRLOOTrainer, "rollout")])
def test_a_batch_without_groups_changes_no_weights(run, trainer, weighting):
    """No completion is correct, so dynamic sampling finds no mixed group in any prompt of the data set."""
    given = {"allocator": DAPO(rollouts_per_prompt=4, draw=2, max_draws=3), "weighting": weighting}
    judge, questions = Judge(mark=lambda completion, k: 0.0), make_questions(8)
    config = {"max_steps": 2, "max_grad_norm": 0.0}
    _, watch, history = run(trainer, config=config, judge=judge, questions=questions, **given)
    for step in watch.steps:
        assert {prompt: len(calls) for prompt, calls in step.by_prompt.items()} == dict.fromkeys(questions["prompt"], 4)
        assert step.rows == [] and step.padding == 4
    assert [row["loss"] for row in history] == [0.0, 0.0]
    assert [float(gradient.abs().max()) for _, gradient in watch.updates] == [0.0, 0.0]
