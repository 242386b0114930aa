"""The learner: it updates the policy, and PPO's critic, from the groups of a step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import Qwen2ForCausalLM

from apportion.baselines import Baseline
from apportion.lab.training.critic import Critic, token_advantages, value_loss
from apportion.lab.training.loss import (
    TrainingRow,
    refresh_logprobs,
    rows_with,
    surrogate_loss,
    token_logprobs,
    training_rows,
)
from apportion.lab.training.saved_weights import check_adam, check_weights
from apportion.lab.training.settings import Training
from apportion.predictors.saved import SavedValues
from apportion.types import Floats, Group

ROWS_AT_ONCE = 256
VALUE_CLIP = 0.5


class PolicyLearner:
    """Updates ``policy`` in place by the estimator, weighting and optimiser of ``training``.

    ``state_dict`` holds everything that it remembers.
    """

    def __init__(self, policy: Qwen2ForCausalLM, training: Training, reference: Qwen2ForCausalLM | None) -> None:
        self.policy, self.training, self.reference = policy, training, reference
        self._begin()

    def update(
        self, groups: Sequence[Group], baseline: Baseline | None, importance: Floats | None = None
    ) -> dict[str, float]:
        """Take ``updates_per_step`` optimiser steps on ``groups``, or none without a gradient. Return metrics.

        ``importance`` [groups] multiplies the weights of the groups in the loss.
        """
        settings = self.training
        if self.critic is not None:
            rows = self._actor_critic_rows(groups, importance)
        else:
            fixed = None if baseline is None else baseline.predict([group.prompt for group in groups])
            rows = training_rows(groups, settings.estimator, settings.loss_weighting, fixed, importance)
        rows = [row for row in rows if settings.kl or np.any(row.advantage)]
        rows = sorted(rows, key=lambda row: len(row.prompt) + len(row.completion.tokens))
        rows = refresh_logprobs(self.policy, rows, settings.temperature)
        measured = {"rows": float(len(rows)), "grad_norm": 0.0}
        for epoch in range(settings.updates_per_step if rows else 0):
            if epoch == settings.updates_per_step - 1:
                measured |= _ratios(self.policy, [row for row in rows if row.reused], settings.temperature)
            self.optimizer.zero_grad()
            for first in range(0, len(rows), ROWS_AT_ONCE):
                surrogate_loss(
                    self.policy,
                    rows[first : first + ROWS_AT_ONCE],
                    clip_ratio=settings.clip_ratio,
                    temperature=settings.temperature,
                    kl=settings.kl,
                    reference=self.reference,
                ).backward()
            measured["grad_norm"] = self._step(self.optimizer, self.policy)
        return measured

    def reset(self, start: Qwen2ForCausalLM) -> None:
        """Restore the weights of ``start`` and the state of a new learner."""
        self.policy.load_state_dict(start.state_dict())
        self._begin()

    def state_dict(self) -> dict[str, Any]:
        """Return weights and optimiser states."""
        state: dict[str, Any] = {}
        for name, model, optimizer_name, optimizer in self._models():
            state |= {name: model.state_dict(), optimizer_name: optimizer.state_dict()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state_dict`` was taken. Raise ValueError for a state of other sizes or settings."""
        saved = SavedValues(state, "the learner", self.state_dict().keys())
        for name, model, optimizer_name, optimizer in self._models():
            check_weights(saved.state(name), model, name)
            check_adam(saved.state(optimizer_name), optimizer, optimizer_name)
        for name, model, optimizer_name, optimizer in self._models():
            model.load_state_dict(saved.state(name))
            optimizer.load_state_dict(saved.state(optimizer_name))

    def _begin(self) -> None:
        """Make new optimisers, and a new critic for PPO."""
        settings = self.training
        self.optimizer = _adam(self.policy, settings.learning_rate)
        self.critic = Critic(self.policy) if settings.estimator == "gae" else None
        self.critic_optimizer = _adam(self.critic, settings.critic_learning_rate) if self.critic else None

    def _models(self) -> list[tuple[str, torch.nn.Module, str, torch.optim.Optimizer]]:
        """Return each model and its optimiser, with their names in the state."""
        models: list[tuple[str, torch.nn.Module, str, torch.optim.Optimizer]]
        models = [("policy", self.policy, "optimizer", self.optimizer)]
        if self.critic is not None and self.critic_optimizer is not None:
            models.append(("critic", self.critic, "critic_optimizer", self.critic_optimizer))
        return models

    def _actor_critic_rows(self, groups: Sequence[Group], importance: Floats | None = None) -> list[TrainingRow]:
        """Return rows with an advantage for every token, and teach the critic the returns.

        Only kept rollouts are used, because a value needs no group and other rollouts may be stale.
        """
        critic, optimizer = self.critic, self.critic_optimizer
        assert critic is not None and optimizer is not None
        trained, settings = np.array([group.keep.any() for group in groups], bool), self.training
        importance = None if importance is None else importance[trained]
        groups = [_keep(group) for group, wanted in zip(groups, trained, strict=True) if wanted]
        if not groups:
            return []
        every = rows_with(groups, [0.0] * sum(len(group.rollouts) for group in groups))
        prompts, completions = [row.prompt for row in every], [row.completion.tokens for row in every]
        with torch.no_grad():
            old, mask = critic(prompts, completions)
        advantages, returns = token_advantages(
            groups, old.double().numpy(), mask.numpy(), discount=settings.discount, trace=settings.trace
        )
        for _ in range(settings.critic_updates):
            optimizer.zero_grad()
            values, _ = critic(prompts, completions)
            value_loss(values, old, torch.from_numpy(returns).float(), mask, VALUE_CLIP).backward()
            self._step(optimizer, critic)
        of_tokens = [row[: len(tokens)] for row, tokens in zip(advantages, completions, strict=True)]
        return rows_with(groups, of_tokens, settings.loss_weighting, importance)

    def _step(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> float:
        """Take one optimiser step. Return the gradient norm before clipping."""
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), self.training.max_grad_norm))
        optimizer.step()
        return norm


def _ratios(policy: Qwen2ForCausalLM, reused: Sequence[TrainingRow], temperature: float) -> dict[str, float]:
    """Return mean and variance of the importance ratios over the tokens of ``reused`` rows; {} without rows."""
    if not reused:
        return {}
    now = np.concatenate(token_logprobs(policy, reused, temperature))
    ratios = np.exp(now - np.concatenate([row.completion.logprobs for row in reused]))
    return {"reused_ratio": float(ratios.mean()), "reused_ratio_variance": float(ratios.var())}


def _adam(model: torch.nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)


def _keep(group: Group) -> Group:
    """Return the group with only the rollouts that enter the loss."""
    rollouts = tuple(rollout for rollout, keep in zip(group.rollouts, group.keep, strict=True) if keep)
    return Group(group.prompt, rollouts, recompute=group.recompute[group.keep])
