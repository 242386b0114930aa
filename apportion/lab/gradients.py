"""Gradients of single completions, and the shares of the batch's gradient that they add up to.

The gradient of ``surrogate_loss`` at the policy that sampled is linear in the advantages, and equal completions of one
prompt have equal gradients. So each distinct completion is differentiated once, a draw of the rollouts is a row of
coefficients on those gradients, and only their inner products are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import Qwen2ForCausalLM

from apportion.lab.loss import Row, surrogate_loss
from apportion.lab.sampler import Completion
from apportion.types import Floats


class Shares:
    """One prompt's shares of the gradient in every draw of every rule, as coefficients on its distinct completions.

    It remembers the rollouts that are added.
    """

    def __init__(self, rules: int, draws: int) -> None:
        self.shape = (rules, draws)
        self.columns: dict[tuple[int, ...], int] = {}
        self.rows: list[Row] = []
        self.entries: list[tuple[int, int, int, float]] = []

    def add(self, rule: int, draw: int, row: Row) -> None:
        """A rollout without an advantage has no gradient and is not kept."""
        if row.advantage == 0:
            return
        column = self.columns.setdefault(row.completion.tokens, len(self.rows))
        if column == len(self.rows):
            self.rows.append(row)
        self.entries.append((rule, draw, column, row.advantage * row.weight))

    def products(self, policy: Qwen2ForCausalLM) -> Floats:
        """Inner products [rules, draws, draws] of this prompt's shares of the gradient."""
        if not self.rows:
            return np.zeros((*self.shape, self.shape[1]))
        weights = np.zeros((*self.shape, len(self.rows)))
        rules, draws, columns, values = zip(*self.entries, strict=True)
        np.add.at(weights, (rules, draws, columns), values)
        gradients = completion_gradients(policy, self.rows[0].prompt, [row.completion for row in self.rows])
        gram = (gradients @ gradients.T).double().numpy()
        return weights @ gram @ weights.transpose(0, 2, 1)


def completion_gradients(
    policy: Qwen2ForCausalLM, prompt: Sequence[int], completions: Sequence[Completion]
) -> torch.Tensor:
    """Gradient [completions, parameters] of the loss by each completion at advantage 1 and weight 1."""
    parameters = list(policy.parameters())
    gradients = torch.empty(len(completions), sum(parameter.numel() for parameter in parameters))
    for row, completion in zip(gradients, completions, strict=True):
        loss = surrogate_loss(policy, [Row(tuple(prompt), completion, advantage=1.0, weight=1.0)])
        torch.cat([part.flatten() for part in torch.autograd.grad(loss, parameters)], out=row)
    return gradients
