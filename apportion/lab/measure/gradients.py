"""Gradients of single completions, and each prompt's share of the batch's gradient.

The gradient of ``surrogate_loss`` at the sampling policy is linear in the advantages, and equal completions of one
prompt have equal gradients. So each distinct completion is differentiated once, a draw of the rollouts is a row of
coefficients on those gradients, and only their inner products are kept.
"""

from collections.abc import Sequence

import numpy as np
import torch
from transformers import Qwen2ForCausalLM

from apportion.lab.policy.sampler import LedgerCompletion
from apportion.lab.training.loss import TrainingRow, surrogate_loss
from apportion.types import Floats


def share_products(
    policy: Qwen2ForCausalLM, entries: Sequence[tuple[int, int, TrainingRow]], rules: int, draws: int
) -> Floats:
    """Return the inner products [rules, draws, draws] of one prompt's shares of the gradient in the draws of each rule.

    ``entries`` are the rule, the draw and the row of its rollouts. Those without an advantage have no gradient.
    """
    if not entries:
        return np.zeros((rules, draws, draws))
    distinct: dict[tuple[int, ...], TrainingRow] = {}
    for _, _, row in entries:
        distinct.setdefault(row.completion.tokens, row)
    columns = {tokens: column for column, tokens in enumerate(distinct)}
    weights = np.zeros((rules, draws, len(distinct)))
    for rule, draw, row in entries:
        weights[rule, draw, columns[row.completion.tokens]] += row.advantage * row.weight
    gradients = completion_gradients(policy, entries[0][2].prompt, [row.completion for row in distinct.values()])
    gram = (gradients @ gradients.T).double().numpy()
    return weights @ gram @ weights.transpose(0, 2, 1)


def completion_gradients(
    policy: Qwen2ForCausalLM, prompt: Sequence[int], completions: Sequence[LedgerCompletion]
) -> torch.Tensor:
    """Return the gradient [completions, parameters] of each completion's loss at advantage 1 and weight 1."""
    parameters = list(policy.parameters())
    gradients = torch.empty(len(completions), sum(parameter.numel() for parameter in parameters))
    for row, completion in zip(gradients, completions, strict=True):
        loss = surrogate_loss(policy, [TrainingRow(tuple(prompt), completion, advantage=1.0, weight=1.0)])
        torch.cat([part.flatten() for part in torch.autograd.grad(loss, parameters)], out=row)
    return gradients
