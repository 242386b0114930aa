"""The critic of PPO: a learnt value for every token of a completion.

Reference: Schulman et al. 2017, arXiv 1707.06347 (clipped surrogate and value loss), and Schulman et al. 2016, arXiv
1506.02438 (generalised advantage estimation). The reward of a rollout is given at its last token.
"""

import copy
from collections.abc import Sequence

import numpy as np
import torch
from transformers import Qwen2ForCausalLM

from apportion.advantages import gae, whiten
from apportion.lab.policy.network import pack_rows
from apportion.types import Floats, Group, Mask


class Critic(torch.nn.Module):
    """Values from a body that starts as a copy of the policy's and a linear head that starts at 0."""

    def __init__(self, policy: Qwen2ForCausalLM) -> None:
        super().__init__()
        self.body = copy.deepcopy(policy.model)
        self.head = torch.nn.Linear(policy.config.hidden_size, 1)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def forward(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the value [N, T] of the state before each completion token, and the mask [N, T] of existing tokens."""
        tokens, places, mask = pack_rows(prompts, completions)
        hidden = self.body(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
        values = self.head(hidden)[..., 0].gather(1, places - 1)
        return values.masked_fill(~mask, 0.0), mask


def token_advantages(
    groups: Sequence[Group], values: Floats, mask: Mask, *, discount: float, trace: float
) -> tuple[Floats, Floats]:
    """Return whitened generalised advantages [N, T] and the critic's targets, the returns [N, T], for all rollouts.

    ``values`` [N, T] are the critic's at sampling. ``discount`` is gamma and ``trace`` is lambda.
    """
    rewards = np.zeros(mask.shape)
    last = mask.sum(axis=1) - 1
    rewards[np.arange(len(mask)), last] = np.concatenate([group.rewards for group in groups])
    advantages, returns = gae(rewards, values, mask, discount, trace)
    return whiten(advantages, mask), returns


def value_loss(
    values: torch.Tensor, old: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor, clip: float
) -> torch.Tensor:
    """Return half the mean over tokens of the larger squared error, plain or clipped around ``old`` [N, T]."""
    near = old + (values - old).clamp(-clip, clip)
    errors = torch.maximum((values - returns) ** 2, (near - returns) ** 2)
    return 0.5 * (errors * mask).sum() / mask.sum()
