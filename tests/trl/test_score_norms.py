"""Score norms, compared with gradients by autograd, and rules that learn from them in TRL."""

from __future__ import annotations

import math

import pytest
import torch

from apportion import Neyman, Uniform
from apportion.baselines import Optimal
from apportion.engines.prompts import prompt_of
from apportion.trl import AllocatedGRPOTrainer
from apportion.trl.score_norms import score_norms


class Bigram(torch.nn.Module):
    """A model whose logits depend on the last token only."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.table = torch.randn(vocabulary, vocabulary, generator=torch.Generator().manual_seed(0))

    def forward(self, input_ids, attention_mask, use_cache):
        self.logits = self.table[input_ids].requires_grad_()
        return self


def test_the_norm_is_that_of_the_gradient_with_respect_to_the_logits(monkeypatch):
    monkeypatch.setattr("apportion.trl.score_norms.TOKENS_AT_ONCE", 2)
    table = {
        "prompt_ids": torch.tensor([[0, 3], [1, 2], [5, 5]]),
        "prompt_mask": torch.tensor([[0, 1], [1, 1], [1, 1]]),
        "completion_ids": torch.tensor([[4, 1, 2, 0, 0], [3, 3, 1, 2, 5], [2, 1, 4, 4, 0]]),
        "completion_mask": torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]),
        "tool_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 0, 0, 1, 1], [1, 1, 1, 1, 1]]),
    }
    model, temperature = Bigram(6), 0.7
    found = score_norms(model, table, temperature, batch_size=2)
    mask = table["completion_mask"] * table["tool_mask"]
    for row, norm in enumerate(found):
        before = torch.cat([table["prompt_ids"][row, -1:], table["completion_ids"][row, :-1]])
        scaled = (model.table[before] / temperature).requires_grad_()
        chosen = torch.log_softmax(scaled, -1).gather(-1, table["completion_ids"][row, :, None])[:, 0]
        (gradient,) = torch.autograd.grad((chosen * mask[row]).sum(), scaled)
        assert norm == pytest.approx(gradient.square().sum().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("allocator", "settings"),
    [
        (lambda: Neyman(rollouts_per_prompt=8), {}),
        (lambda: Uniform(8), {"estimator": "reinforce", "baseline": Optimal()}),
        (lambda: Uniform(1), {"estimator": "reinforce", "baseline": Optimal()}),
    ],
    ids=["measured moments", "optimal baseline", "single rollouts"],
)
def test_rules_that_learn_from_score_norms_train(make, allocator, settings):
    """With a baseline from history, single rollouts have a gradient."""
    trainer = make(AllocatedGRPOTrainer, allocator=allocator(), **settings)
    trainer.train()
    history = [logged for logged in trainer.state.log_history if "loss" in logged]
    assert all(math.isfinite(logged["grad_norm"]) for logged in history) and history[-1]["grad_norm"] > 0
    prompts = [prompt_of(row) for row in trainer.train_dataset]
    baseline, rule = trainer.allocation.baseline, trainer.allocation.allocator
    learnt = rule.predictor.predict(prompts).mean if baseline is None else baseline.predict(prompts)
    assert len(set(learnt.round(6))) > 1
