"""The learner: it updates the policy, and PPO's critic, from the groups of a step."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import Qwen2ForCausalLM

from apportion.advantages import gated
from apportion.lab.training import loss
from apportion.lab.training.critic import Critic, token_advantages, value_loss
from apportion.lab.training.loss import TrainingRow, rows_with
from apportion.lab.training.settings import Training
from apportion.lab.world.task import encode
from apportion.predictors.saved import SavedValues, undone_if_refused
from apportion.scheduler import TrainerAllocation
from apportion.types import Group

ROWS_AT_ONCE = 256
VALUE_CLIP = 0.5


class PolicyLearner:
    """Updates ``policy`` in place by the estimator, weighting and optimiser of ``training``.

    ``state_dict`` holds everything that it remembers.
    """

    def __init__(self, policy: Qwen2ForCausalLM, training: Training, reference: Qwen2ForCausalLM | None) -> None:
        self.policy, self.training, self.reference = policy, training, reference
        self._begin()

    def update(self, groups: Sequence[Group], decisions: TrainerAllocation) -> dict[str, float]:
        """Take ``updates_per_step`` optimiser steps on ``groups``, or none without a gradient. Return metrics."""
        settings, rows_of = self.training, self._actor_critic_rows if self.critic else loss.training_rows
        rows = rows_of(groups, decisions)
        rows = [row for row in rows if settings.kl or np.any(row.advantage)]
        rows = sorted(rows, key=lambda row: len(row.prompt) + len(row.completion.tokens))
        rows = loss.refresh_logprobs(self.policy, rows, settings.temperature)
        measured = {"rows": float(len(rows)), "grad_norm": 0.0}
        for _ in range(settings.updates_per_step if rows else 0):
            self.optimizer.zero_grad()
            for first in range(0, len(rows), ROWS_AT_ONCE):
                chunk = rows[first : first + ROWS_AT_ONCE]
                how = (settings.clip_ratio, settings.temperature, settings.kl, self.reference)
                loss.surrogate_loss(self.policy, chunk, *how).backward()
            measured["grad_norm"] = self._step(self.optimizer, self.policy)
        return measured

    def reset(self, start: Qwen2ForCausalLM) -> None:
        """Restore the weights of ``start`` and the state of a new learner."""
        self.policy.load_state_dict(start.state_dict())
        self._begin()

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of weights and optimiser states."""
        return copy.deepcopy({name: part.state_dict() for name, part in self._parts().items()})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where ``state_dict`` was taken. Raise ValueError for a state of other sizes."""
        parts = self._parts()
        saved = SavedValues(state, "the learner", parts)
        with undone_if_refused(self):
            for name, part in parts.items():
                try:
                    part.load_state_dict(saved.state(name))
                except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
                    raise saved.refusal(name, "the state of a model or an Adam of the sizes of this run") from error

    def _begin(self) -> None:
        """Make new optimisers, and a new critic for PPO."""
        settings = self.training
        self.optimizer = _adam(self.policy, settings.learning_rate)
        self.critic = Critic(self.policy) if settings.estimator == "gae" else None
        self.critic_optimizer = _adam(self.critic, settings.critic_learning_rate) if self.critic else None

    def _parts(self) -> dict[str, torch.nn.Module | torch.optim.Optimizer]:
        """Return the models and their optimisers, by their keys in the state."""
        parts: dict[str, torch.nn.Module | torch.optim.Optimizer] = {"policy": self.policy, "optimizer": self.optimizer}
        if self.critic is not None and self.critic_optimizer is not None:
            parts |= {"critic": self.critic, "critic_optimizer": self.critic_optimizer}
        return parts

    def _actor_critic_rows(self, groups: Sequence[Group], decisions: TrainerAllocation) -> list[TrainingRow]:
        """Return rows with an advantage for every token, and teach the critic the returns.

        Only kept rollouts are used, because a value needs no group and other rollouts may be stale.
        """
        critic, optimizer, settings = self.critic, self.critic_optimizer, self.training
        assert critic is not None and optimizer is not None
        groups = [_keep(gated(group, settings.outcome_gate)) for group in groups if group.keep.any()]
        if not groups:
            return []
        prompts = [tuple(encode(group.prompt.text)) for group in groups for _ in group.rollouts]
        completions = [rollout.completion.tokens for group in groups for rollout in group.rollouts]
        with torch.no_grad():
            old, mask = critic(prompts, completions)
        sampled = (old.double().numpy(), mask.numpy())
        advantages, returns = token_advantages(groups, *sampled, discount=settings.discount, trace=settings.trace)
        for _ in range(settings.critic_updates):
            optimizer.zero_grad()
            values, _ = critic(prompts, completions)
            value_loss(values, old, torch.from_numpy(returns).float(), mask, VALUE_CLIP).backward()
            self._step(optimizer, critic)
        of_tokens = [row[: len(tokens)] for row, tokens in zip(advantages, completions, strict=True)]
        return rows_with(groups, of_tokens, decisions.weights(groups))

    def _step(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> float:
        """Take one optimiser step. Return the gradient norm before clipping."""
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), self.training.max_grad_norm))
        optimizer.step()
        return norm


def _adam(model: torch.nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)


def _keep(group: Group) -> Group:
    """Return the group with only the rollouts that enter the loss."""
    rollouts = tuple(rollout for rollout, keep in zip(group.rollouts, group.keep, strict=True) if keep)
    return Group(group.prompt, rollouts, recompute=group.recompute[group.keep])
