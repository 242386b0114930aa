"""Score norms from log-probabilities, recomputed from the policy, and rules that learn from them in TRL."""

import pytest
import torch

from apportion import Neyman, Uniform
from apportion.baselines import Optimal
from apportion.predictors import DiscountedCounts
from apportion.records import read_log
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer
from apportion.trl.rounds import score_norms
from apportion.trl.settings import TRLAllocation
from tests.trl.tiny import ids_of, log_probabilities, make_policy

TEMPERATURE = 0.7


def expected_norm(call):
    """Return the sum of (1 - pi)^2 over the tokens of a completion under the untrained policy."""
    with torch.no_grad():
        pi = log_probabilities(make_policy(), ids_of(call.prompt), call.ids, TEMPERATURE).exp()
    return float(((1 - pi) ** 2).sum())


@pytest.mark.parametrize(
    ("trainer", "config", "weighting", "mean"),
    [
        (AllocatedGRPOTrainer, {"loss_type": "grpo"}, "prompt", True),
        (AllocatedGRPOTrainer, {"loss_type": "grpo"}, "token", False),
        (AllocatedGRPOTrainer, {"loss_type": "dapo", "steps_per_generation": 8}, "prompt", False),
        (AllocatedRLOOTrainer, {}, "prompt", False),
    ],
    ids=["means", "means weighted by token", "log-probabilities of TRL", "rloo"],
)
def test_norms_are_those_of_the_row_s_gradient_in_the_loss(make, tmp_path, trainer, config, weighting, mean):
    """TRL's method for log-probabilities is called once for them, unless TRL needs these itself."""
    config = {"max_steps": 1, "temperature": TEMPERATURE, **config}
    given = {"estimator": "group_optimal", "weighting": weighting, "rollout_log": tmp_path / "log"}
    built, passes = make(trainer, config=config, allocator=Uniform(8), **given), []
    compute = built._get_per_token_logps_and_entropies

    def counted(*args, **given):
        passes.append(torch.is_grad_enabled())
        return compute(*args, **given)

    built._get_per_token_logps_and_entropies = counted
    built.train()
    found = {(row["prompt"], row["completion"]): row["score_norm"] for row in read_log(tmp_path / "log").to_pylist()}
    calls = [call for calls in built.reward_funcs[0].rounds for call in calls]
    assert len({len(call.ids) for call in calls}) > 1
    for call in calls:
        scale = len(call.ids) ** 2 if mean else 1
        assert found[call.prompt, call.text] == pytest.approx(expected_norm(call) / scale, rel=1e-4)
    assert passes.count(False) == (2 if trainer is AllocatedRLOOTrainer else 1)


REINFORCE = {"allocator": Uniform(1), "estimator": "reinforce"}


def test_norms_are_asked_for_by_allocator_estimator_or_baseline_alone():
    for given, wanted in (
        ({"allocator": Uniform(8)}, None),
        ({"allocator": Neyman()}, "sum"),
        ({"allocator": Uniform(8), "estimator": "batch_optimal"}, "sum"),
        (REINFORCE | {"baseline": Optimal()}, "sum"),
        ({"allocator": Neyman(predictor=DiscountedCounts())}, None),
    ):
        assert TRLAllocation(**given).norm_reduction("dr_grpo") == wanted, given


def test_tokens_of_tools_padding_and_masked_completions_have_no_norm():
    logprobs = torch.tensor([[0.5, 0.5, 1.0, 0.1], [0.5, 0.1, 0.1, 1.0], [0.1] * 4]).log()
    table = {
        "completion_mask": torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]]),
        "tool_mask": torch.tensor([[1, 1, 1, 1], [1, 0, 0, 1], [1, 1, 1, 1]]),
    }
    assert score_norms(table, logprobs, "sum") == pytest.approx([0.5, 0.25, 0])
    assert score_norms(table, logprobs, "mean") == pytest.approx([0.5 / 9, 0.25 / 4, 0])
