"""Squared score norms of completions, for predictors of moments and the optimal baseline.

The score is the gradient of a completion's log-probability with respect to the logits. Its squared norm is the sum
over tokens of 1 - 2 pi(token) + sum(pi^2), see ``apportion.baselines``. TRL does not report it, so it takes one more
forward pass over the completions.
"""

from typing import Any

import torch
from torch import Tensor

from apportion.trl.rows import Table, loss_mask, sequences, size

TOKENS_AT_ONCE = 256
"""Tokens per row whose float32 probabilities over the vocabulary are held in memory at a time."""


@torch.no_grad()
def score_norms(model: Any, table: Table, temperature: float, batch_size: int) -> list[float]:
    """Return squared score norms [N] of the completions in ``table`` under ``model``, without the tokens of tools."""
    found: list[float] = []
    for first in range(0, size(table), batch_size):
        part = {key: value[first : first + batch_size] for key, value in table.items()}
        ids, attention = sequences(part)
        length = part["completion_ids"].size(1)
        logits = model(input_ids=ids, attention_mask=attention, use_cache=False).logits[:, -length - 1 : -1]
        pieces = [slice(start, start + TOKENS_AT_ONCE) for start in range(0, length, TOKENS_AT_ONCE)]
        tokens = part["completion_ids"]
        norms = torch.cat([_token_norms(logits[:, each], tokens[:, each], temperature) for each in pieces], dim=1)
        found += (norms * loss_mask(part)).sum(1).tolist()
    return found


def _token_norms(logits: Tensor, ids: Tensor, temperature: float) -> Tensor:
    """Return 1 - 2 pi(token) + sum(pi^2) of each token, [N, T]."""
    probabilities = torch.softmax(logits.float() / temperature, dim=-1)
    chosen = probabilities.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    return 1 - 2 * chosen + probabilities.square().sum(-1)
