"""The rows that the loss sees in ``trainer.train()``, under a rule for each capability.

Rollouts are identified by their prompt and tokens, as the reward function and the loss saw them. Which of them a rule
keeps and what reward they have is in the rollout log, and ``tests/allocators`` checks it.
"""

import math
from collections import defaultdict

import numpy as np
import pytest
import torch

from apportion import AR3PO, DAPO, VIP, OptPO
from apportion.records import read_log
from apportion.trl import AllocatedRLOOTrainer
from tests.trl.tiny import (
    LENGTH,
    TERMS,
    TOKENIZER,
    Judge,
    assert_gradient,
    direct_gradient,
    gradient_of,
    group_advantages,
    hora,
    make_questions,
    policy_with,
)

QUESTIONS = make_questions(16)


def read(text):
    """Return the kind of the first character, so that there are few answers."""
    return None if not text or text[0] in "+ " else "number" if text[0].isdigit() else "letter"


TWO_UPDATES = {"max_steps": 4, "steps_per_generation": 8, "per_device_train_batch_size": 4}
HARD = {"learning_rate": 3e-3, "max_steps": 5}
FRESH = ("fresh prompts", "fresh prompts of a stream")
CAPABILITIES = {
    "one round": (VIP(), {}, {}),
    "several rounds, two updates a batch": (hora(), {"questions": QUESTIONS.select((1, 3, 5, 7))}, TWO_UPDATES),
    FRESH[0]: (DAPO(rollouts_per_prompt=6, draw=3, max_draws=3), {"questions": QUESTIONS}, {}),
    FRESH[1]: (
        DAPO(rollouts_per_prompt=6, draw=3, max_draws=3),
        {"questions": QUESTIONS.to_iterable_dataset()},
        {},
    ),
    "reuse": (
        AR3PO(stages=2, rollouts_per_stage=2, reuse="replay"),
        {"questions": QUESTIONS.select([1, 2, 3, 10])},
        HARD,
    ),
    "reuse without a gradient": (
        AR3PO(stages=2, rollouts_per_stage=2, reuse="stop_gradient"),
        {"questions": QUESTIONS.select([1, 2, 3, 10])},
        HARD,
    ),
    "votes": (OptPO(min_samples=8, max_samples=18, exceedances=2, wave="free"), {"extract": read}, {}),
}
"""A rule, what else its trainer is given, and TRL's settings. ``test_modes`` has one update of several rounds."""


@pytest.mark.parametrize("name", CAPABILITIES)
def test_the_loss_sees_the_groups_of_the_rule_with_their_advantages(run, tmp_path, name):
    rule, given, config = CAPABILITIES[name]
    given = {"config": {"max_steps": 2} | config, "allocator": rule, "rollout_log": tmp_path / "log"} | given
    built, watch, history = run(**given)
    log, reused, sizes = read_log(tmp_path / "log").to_pylist(), 0, set()
    for number, (step, logged) in enumerate(zip(watch.steps, history[-len(watch.steps) :], strict=True)):
        votes = step.table.get("agreement", [math.nan] * len(step.calls))
        rewards, groups, rows = defaultdict(list), defaultdict(list), [row for row in log if row["step"] == number]
        for call, vote in zip(step.calls, votes, strict=True):
            rewards[call.prompt].append(vote)
        fresh = [row for row in rows if row["reused_step"] is None]
        if name == "votes":
            assert logged["reward"] == logged["rewards/agreement/mean"] == pytest.approx(np.nanmean(votes))
        else:
            told = sorted((row["prompt"], row["completion"], row["reward"]) for row in fresh)
            assert told == sorted((call.prompt, call.text, call.score) for call in step.calls)
        for row in (row for row in rows if row["advantage"] is not None):
            groups[row["prompt"]].append(row)
        for prompt, own in groups.items():
            seen = [row["reward"] for row in own] if name != "votes" else rewards[prompt][: len(own)]
            assert [row["advantage"] for row in own] == pytest.approx(group_advantages(built, seen), abs=1e-5)
        kept = [row for row in rows if row["kept"]]
        expected = sorted((row["prompt"], row["completion"], round(row["advantage"], 4) + 0.0) for row in kept)
        found = [(decoded(row.prompt), decoded(row.ids), round(row.advantage, 4) + 0.0) for row in step.rows]
        assert groups and sorted(found) == expected
        shown = sorted(a for a in step.table["advantages"] if a)
        assert shown == pytest.approx(sorted(row["advantage"] for row in fresh if row["advantage"]), abs=1e-5)
        assert_chunks(step, len(kept), built)
        reused += sum(row["reused_step"] is not None for row in rows)
        sizes |= {len(calls) for calls in step.by_prompt.values()}
    assert (reused > 0) == ("reuse" in name) and (len(sizes) > 1 or "several" not in name)
    assert name not in FRESH or any(len(step.by_prompt) > 4 for step in watch.steps)


def decoded(ids):
    return TOKENIZER.decode(ids, skip_special_tokens=True)


def assert_chunks(step, rows, built):
    """Micro-batches have equally many rows, at most those that TRL was told, and no more masked rows than necessary."""
    steps, sizes = built.args.steps_per_generation, [len(chunk["advantages"]) for chunk in step.chunks]
    assert max(sizes) <= built.args.per_device_train_batch_size and max(sizes) - min(sizes) <= 1
    assert sum(sizes) == steps * max(1, -(-rows // steps)) and step.padding == sum(sizes) - rows
    full = [int(chunk["completion_mask"].any(dim=1).sum()) for chunk in step.chunks]
    assert max(full) - min(full) <= 1  # masked rows are spread over all micro-batches


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


def test_a_batch_without_groups_changes_no_weights(run):
    """No completion is correct, so dynamic sampling finds no mixed group in any prompt of the data set."""
    given = {"allocator": DAPO(rollouts_per_prompt=4, draw=2, max_draws=3), "weighting": "token"}
    judge, questions = Judge(mark=lambda completion, k: 0.0), make_questions(8)
    config = {"max_steps": 2, "max_grad_norm": 0.0}
    _, watch, history = run(config=config, judge=judge, questions=questions, **given)
    for step in watch.steps:
        assert {prompt: len(calls) for prompt, calls in step.by_prompt.items()} == dict.fromkeys(questions["prompt"], 4)
        assert step.rows == [] and step.padding == 4
    assert [row["loss"] for row in history] == [0.0, 0.0]
    assert [float(gradient.abs().max()) for _, gradient in watch.updates] == [0.0, 0.0]
