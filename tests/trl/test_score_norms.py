"""Score norms from log-probabilities, recomputed from the policy, and rules that learn from them in TRL."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from apportion import Neyman, Uniform
from apportion.baselines import SPO, Optimal
from apportion.engines.prompts import prompt_of
from apportion.predictors import DiscountedCounts
from apportion.records import read_log
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer
from apportion.trl.generation import GenerationBatch
from apportion.trl.settings import TRLAllocation
from tests.trl.tiny import Judge, make_policy, make_tokenizer

TEMPERATURE = 0.7


def expected_norm(call):
    """Return the sum of (1 - pi)^2 over the tokens of a completion under the untrained policy."""
    prompt, count = make_tokenizer()(call.prompt)["input_ids"], len(call.ids)
    with torch.no_grad():
        logits = make_policy()(torch.tensor([[*prompt, *call.ids]])).logits[0, -count - 1 : -1]
    pi = torch.softmax(logits / TEMPERATURE, -1)[torch.arange(count), torch.tensor(call.ids)]
    return float(((1 - pi) ** 2).sum())


def counted(built):
    """Count the calls of TRL's method for log-probabilities, outside the loss."""
    calls, compute = [], built._get_per_token_logps_and_entropies

    def count(*args, **given):
        calls.append(torch.is_grad_enabled())
        return compute(*args, **given)

    built._get_per_token_logps_and_entropies = count
    return lambda: calls.count(False)


@pytest.mark.parametrize(
    ("trainer", "config", "weighting", "mean"),
    [
        (AllocatedGRPOTrainer, {"loss_type": "dr_grpo"}, "prompt", False),
        (AllocatedGRPOTrainer, {"loss_type": "grpo"}, "prompt", True),
        (AllocatedGRPOTrainer, {"loss_type": "grpo"}, "token", False),
        (AllocatedGRPOTrainer, {"loss_type": "dapo", "steps_per_generation": 8}, "prompt", False),
        (AllocatedRLOOTrainer, {}, "prompt", False),
    ],
    ids=["sums of tokens", "means", "means weighted by token", "log-probabilities of TRL", "rloo"],
)
def test_norms_are_those_of_the_row_s_gradient_in_the_loss(make, tmp_path, trainer, config, weighting, mean):
    judge = Judge()
    built = make(
        trainer,
        config={"max_steps": 1, "temperature": TEMPERATURE, **config},
        reward_funcs=[judge],
        allocator=Uniform(8),
        estimator="group_optimal",
        weighting=weighting,
        rollout_log=tmp_path / "log",
    )
    passes = counted(built)
    built.train()
    found = {(row["prompt"], row["completion"]): row["score_norm"] for row in read_log(tmp_path / "log").to_pylist()}
    calls = [call for calls in judge.rounds for call in calls]
    assert len({len(call.ids) for call in calls}) > 1
    for call in calls:
        scale = len(call.ids) ** 2 if mean else 1
        assert found[call.prompt, call.text] == pytest.approx(expected_norm(call) / scale, rel=1e-4)
    of_trl = 1 if trainer is AllocatedRLOOTrainer or "steps_per_generation" in config else 0
    own = 0 if "steps_per_generation" in config else 1
    assert passes() == of_trl + own


@pytest.mark.parametrize(
    ("allocator", "settings"),
    [
        (lambda: Neyman(rollouts_per_prompt=8), {}),
        (lambda: Uniform(8), {"estimator": "reinforce", "baseline": Optimal()}),
        (lambda: Uniform(1), {"estimator": "reinforce", "baseline": Optimal(scope="constant")}),
        (lambda: Uniform(1), {"estimator": "spo", "baseline": SPO()}),
        (lambda: Uniform(1), {"estimator": "batch_optimal"}),
        (lambda: Uniform(8), {"estimator": "group_optimal"}),
    ],
    ids=["measured moments", "optimal baseline", "single rollouts", "spo", "the batch's norms", "the group's norms"],
)
def test_rules_that_learn_from_score_norms_train(make, allocator, settings):
    """With a baseline from history or from other prompts, single rollouts have a gradient."""
    trainer = make(AllocatedGRPOTrainer, allocator=allocator(), **settings)
    trainer.train()
    history = [logged for logged in trainer.state.log_history if "loss" in logged]
    assert all(math.isfinite(logged["grad_norm"]) for logged in history) and history[-1]["grad_norm"] > 0
    prompts = [prompt_of(row) for row in trainer.train_dataset]
    baseline, rule = trainer.allocation.baseline, trainer.allocation.allocator
    if baseline is not None:
        learnt, one_for_all = baseline.predict(prompts), getattr(baseline, "scope", None) == "constant"
        assert np.isfinite(learnt).all() and learnt.any()
        assert (len(set(learnt.round(6))) == 1) == one_for_all
    elif isinstance(rule, Neyman):
        assert len(set(rule.predictor.predict(prompts).mean.round(6))) > 1


def test_norms_are_asked_for_by_allocator_estimator_or_baseline_alone():
    reduction = {
        "none": TRLAllocation(allocator=Uniform(8)),
        "allocator": TRLAllocation(allocator=Neyman()),
        "estimator": TRLAllocation(allocator=Uniform(8), estimator="batch_optimal"),
        "baseline": TRLAllocation(allocator=Uniform(1), estimator="reinforce", baseline=Optimal()),
        "other": TRLAllocation(allocator=Neyman(predictor=DiscountedCounts())),
    }
    found = {name: allocation.norm_reduction("dr_grpo") for name, allocation in reduction.items()}
    assert found == {"none": None, "allocator": "sum", "estimator": "sum", "baseline": "sum", "other": None}


@pytest.mark.parametrize("column", ["old_per_token_logps", "sampling_per_token_logps"])
def test_tokens_of_tools_padding_and_masked_completions_have_no_norm(column):
    table = {
        "completion_ids": torch.ones(3, 4, dtype=torch.long),
        "completion_mask": torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]]),
        "tool_mask": torch.tensor([[1, 1, 1, 1], [1, 0, 0, 1], [1, 1, 1, 1]]),
        column: torch.log(torch.tensor([[0.5, 0.5, 1.0, 0.1], [0.5, 0.1, 0.1, 1.0], [0.1, 0.1, 0.1, 0.1]])),
    }
    generation = GenerationBatch(trainer=None, ranks=None, generate=None, pad_token=0)
    assert generation._score_norms(table, "sum") == pytest.approx([0.5, 0.25, 0])
    assert generation._score_norms(table, "mean") == pytest.approx([0.5 / 9, 0.25 / 4, 0])
