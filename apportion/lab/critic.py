"""The critic of PPO: a value for every token of a completion, learnt beside the policy.

Reference: Schulman et al. 2017, arXiv 1707.06347 (clipped surrogate and value loss), and Schulman et al. 2016, arXiv
1506.02438 (generalised advantage estimation). The reward of a rollout arrives with its last token.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from transformers import Qwen2ForCausalLM

from apportion.advantages import gae, whiten
from apportion.lab.policy import packed
from apportion.types import Floats, Group, Mask


class Critic(torch.nn.Module):
    """Values from a body of its own, which starts as the policy's, and a linear head, which starts at 0."""

    def __init__(self, policy: Qwen2ForCausalLM) -> None:
        super().__init__()
        self.body = copy.deepcopy(policy.model)
        self.head = torch.nn.Linear(policy.config.hidden_size, 1)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def forward(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Value [N, T] of the state before each completion token, and the mask [N, T] of tokens that exist."""
        tokens, places, mask = packed(prompts, completions)
        hidden = self.body(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
        values = self.head(hidden)[..., 0].gather(1, places - 1)
        return values.masked_fill(~mask, 0.0), mask


def token_advantages(
    groups: Sequence[Group], values: Floats, mask: Mask, *, discount: float, trace: float
) -> tuple[Floats, Floats]:
    """Whitened generalised advantages [N, T] and the returns [N, T] that the critic learns, for all rollouts in order.

    ``values`` [N, T] are the critic's when sampled, ``discount`` is gamma and ``trace`` lambda.
    """
    rewards = np.zeros(mask.shape)
    last = mask.sum(axis=1) - 1
    rewards[np.arange(len(mask)), last] = np.concatenate([group.rewards for group in groups])
    advantages, returns = gae(rewards, values, mask, discount, trace)
    return whiten(advantages, mask), returns


def value_loss(
    values: torch.Tensor, old: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor, clip: float
) -> torch.Tensor:
    """Half the mean squared error over tokens, the worse of plain and clipped to within ``clip`` of ``old`` [N, T]."""
    near = old + (values - old).clamp(-clip, clip)
    errors = torch.maximum((values - returns) ** 2, (near - returns) ** 2)
    return 0.5 * (errors * mask).sum() / mask.sum()
