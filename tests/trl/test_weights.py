"""Weightings and our own estimators in TRL's loss, compared with gradients computed from the definitions."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from apportion import AR3PO, HORA, ReinforceAda
from apportion.advantages import ESTIMATORS, needs
from apportion.baselines import Predicted, Zero
from apportion.predictors import DiscountedCounts
from apportion.records import read_log
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer
from tests.soak import case
from tests.trl.tiny import (
    TERMS,
    Judge,
    Row,
    Watch,
    assert_gradient,
    assert_rows,
    direct_gradient,
    group_advantages,
    make_questions,
    make_tokenizer,
    trained,
)

QUESTIONS = make_questions(8)
TOKENS_OF = {row["prompt"]: tuple(make_tokenizer()(row["prompt"])["input_ids"]) for row in QUESTIONS}


def run(make, trainer, allocator, settings, **given):
    judge = Judge()
    watch = Watch(judge)
    settings = {"max_steps": 1, "max_grad_norm": 0.0} | settings
    built = make(trainer, config=settings, reward_funcs=[judge], questions=QUESTIONS, allocator=allocator, **given)
    trained(watch.on(built))
    return built, watch


def means(rows, weighting, loss):
    """Return c_i by definition: a mean over prompts of means of their rollouts, over rollouts, or over tokens."""
    prompts, all_tokens = len({row.prompt for row in rows}), sum(len(row.ids) for row in rows)
    of = {row.prompt: sum(other.prompt == row.prompt for other in rows) for row in rows}
    one = [term * len(rows) for term in TERMS[loss](rows)]
    if weighting == "prompt":
        return [term / prompts / of[row.prompt] for term, row in zip(one, rows, strict=True)]
    if weighting == "token" and loss == "grpo":
        return [1 / all_tokens] * len(rows)
    return [term / len(rows) for term in one]


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "dapo", "rloo"])
@pytest.mark.parametrize("weighting", ["prompt", "rollout", "token"])
def test_the_gradient_is_the_mean_of_the_weighting(make, loss, weighting):
    trainer = AllocatedRLOOTrainer if loss == "rloo" else AllocatedGRPOTrainer
    allocator = AR3PO(stages=3, rollouts_per_stage=3, reuse="none")
    settings = {} if loss == "rloo" else {"loss_type": loss}
    built, watch = run(make, trainer, allocator, settings, weighting=weighting)
    rows = []
    for prompt, calls in watch.steps[0].by_prompt.items():
        advantages = group_advantages(built, [call.score for call in calls])
        rows += [Row(TOKENS_OF[prompt], c.ids, a) for c, a in zip(calls, advantages, strict=True)]
    assert len({len(calls) for calls in watch.steps[0].by_prompt.values()}) > 1
    assert len({len(row.ids) for row in rows}) > 1
    weights, gradient = watch.updates[0]
    assert_gradient(gradient, direct_gradient(weights, rows, lambda rows: means(rows, weighting, loss)))


def test_the_weight_of_a_prompt_is_divided_among_its_kept_rows(make):
    """Reinforce-Ada keeps only some of the rollouts."""
    allocator = ReinforceAda(exit="positive", rollouts_per_round=2, rounds=3, keep=5)
    given = {"loss_type": "grpo"}
    _, plain = run(make, AllocatedGRPOTrainer, allocator, given)
    _, weighted = run(make, AllocatedGRPOTrainer, allocator, given, weighting="prompt")
    rows = plain.steps[0].rows
    numbers = {row.prompt: sum(other.prompt == row.prompt for other in rows) for row in rows}
    assert len(set(numbers.values())) > 1
    scale = {prompt: len(rows) / len(numbers) / number for prompt, number in numbers.items()}
    assert_rows(weighted.steps[0].rows, [replace(row, advantage=row.advantage * scale[row.prompt]) for row in rows])


def rounds_of(step):
    """Return the round numbers of the calls of each prompt."""
    found = defaultdict(list)
    for number, calls in enumerate(step.rounds):
        for call in calls:
            found[call.prompt].append(number)
    return found


@pytest.mark.parametrize(
    ("trainer", "name"),
    [
        case(trainer, name, suite=(place + turn) % 2 == 0)
        for place, trainer in enumerate((AllocatedGRPOTrainer, AllocatedRLOOTrainer))
        for turn, name in enumerate(sorted(ESTIMATORS))
    ],
)
def test_our_estimators_replace_trl_s_formula(make, tmp_path, trainer, name):
    given = {"baseline": Predicted(DiscountedCounts())} if "baseline" in needs(name) else {}
    allocator = HORA(pre_rollouts=3, rollouts_per_prompt=8, high=16)
    log = tmp_path / "log"
    _, watch = run(make, trainer, allocator, {"max_steps": 4}, estimator=name, rollout_log=log, **given)
    logged = {(row["step"], row["prompt"], row["completion"]): row["score_norm"] for row in read_log(log).to_pylist()}
    right, wrong = defaultdict(float), defaultdict(float)
    for number, step in enumerate(watch.steps):
        rewards, ids, rounds, tokens, norms, baseline, calls = [], [], [], [], [], [], []
        for prompt, own in step.by_prompt.items():
            expected = (1 + right[prompt]) / (2 + right[prompt] + wrong[prompt])
            scores = [call.score for call in own]
            right[prompt] = 0.9 * right[prompt] + sum(scores)
            wrong[prompt] = 0.9 * wrong[prompt] + len(scores) - sum(scores)
            rewards += scores
            ids += [prompt] * len(own)
            rounds += rounds_of(step)[prompt]
            tokens += [len(call.ids) for call in own]
            norms += [logged[number, prompt, call.text] for call in own]
            baseline += [expected] * len(own)
            calls += own
        columns = {"rounds": rounds, "tokens": tokens, "score_norms": norms, "baseline": baseline}
        advantages = ESTIMATORS[name](rewards, ids, **{column: columns[column] for column in needs(name)})
        assert np.abs(advantages).max() > 0
        assert_rows(
            step.rows,
            [Row(TOKENS_OF[c.prompt], c.ids, float(a)) for c, a in zip(calls, advantages, strict=True)],
        )
    assert len(set(baseline)) > 1
    assert len(set(norms)) > 1 if "score_norms" in needs(name) else set(norms) == {None}


def test_a_zero_baseline_leaves_the_rewards(make):
    allocator = HORA(pre_rollouts=3, rollouts_per_prompt=8, high=16)
    _, watch = run(make, AllocatedGRPOTrainer, allocator, {}, estimator="reinforce", baseline=Zero())
    assert_rows(watch.steps[0].rows, [Row(TOKENS_OF[c.prompt], c.ids, c.score) for c in watch.steps[0].calls])
