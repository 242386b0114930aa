"""The learner: it updates the policy, and PPO's critic, from the groups of a step."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import Qwen2ForCausalLM

from apportion.baselines import Baseline
from apportion.lab.training import loss
from apportion.lab.training.critic import Critic, token_advantages, value_loss
from apportion.lab.training.loss import TrainingRow, rows_with
from apportion.lab.training.settings import Training
from apportion.predictors.saved import SavedValues
from apportion.types import Floats, Group

ROWS_AT_ONCE = 256
VALUE_CLIP = 0.5
SIGNED = "exp_avg"
"""The only tensor of Adam's that may be below 0."""


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
            rows = loss.training_rows(groups, settings.estimator, settings.loss_weighting, fixed, importance)
        rows = [row for row in rows if settings.kl or np.any(row.advantage)]
        rows = sorted(rows, key=lambda row: len(row.prompt) + len(row.completion.tokens))
        rows = loss.refresh_logprobs(self.policy, rows, settings.temperature)
        measured = {"rows": float(len(rows)), "grad_norm": 0.0}
        for epoch in range(settings.updates_per_step if rows else 0):
            if epoch == settings.updates_per_step - 1:
                measured |= _ratios(self.policy, [row for row in rows if row.reused], settings.temperature)
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
        """Return weights and optimiser states."""
        return {name: part.state_dict() for name, part in self._parts().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state_dict`` was taken. Raise ValueError for a state of other sizes or settings."""
        parts = self._parts()
        saved = SavedValues(state, "the learner", parts)
        for name, part in parts.items():
            if isinstance(part, torch.nn.Module):
                _check_weights(saved.state(name), part, name)
            else:
                _check_adam(saved.state(name), part, name)
        for name, part in parts.items():
            part.load_state_dict(saved.state(name))

    def _begin(self) -> None:
        """Make new optimisers, and a new critic for PPO."""
        settings = self.training
        self.optimizer = _adam(self.policy, settings.learning_rate)
        self.critic = Critic(self.policy) if settings.estimator == "gae" else None
        self.critic_optimizer = _adam(self.critic, settings.critic_learning_rate) if self.critic else None

    def _parts(self) -> dict[str, torch.nn.Module | torch.optim.Optimizer]:
        """Return the models and their optimisers, by their names in the state."""
        parts: dict[str, torch.nn.Module | torch.optim.Optimizer] = {"policy": self.policy, "optimizer": self.optimizer}
        if self.critic is not None and self.critic_optimizer is not None:
            parts |= {"critic": self.critic, "critic_optimizer": self.critic_optimizer}
        return parts

    def _actor_critic_rows(self, groups: Sequence[Group], importance: Floats | None = None) -> list[TrainingRow]:
        """Return rows with an advantage for every token, and teach the critic the returns.

        Only kept rollouts are used, because a value needs no group and other rollouts may be stale.
        """
        critic, optimizer, settings = self.critic, self.critic_optimizer, self.training
        assert critic is not None and optimizer is not None
        trained = [place for place, group in enumerate(groups) if group.keep.any()]
        importance = None if importance is None else importance[trained]
        groups = [_keep(groups[place]) for place in trained]
        if not groups:
            return []
        every = rows_with(groups, [0.0] * sum(len(group.rollouts) for group in groups))
        prompts, completions = [row.prompt for row in every], [row.completion.tokens for row in every]
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
    now = np.concatenate(loss.token_logprobs(policy, reused, temperature))
    ratios = np.exp(now - np.concatenate([row.completion.logprobs for row in reused]))
    return {"reused_ratio": float(ratios.mean()), "reused_ratio_variance": float(ratios.var())}


def _adam(model: torch.nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)


def _keep(group: Group) -> Group:
    """Return the group with only the rollouts that enter the loss."""
    rollouts = tuple(rollout for rollout, keep in zip(group.rollouts, group.keep, strict=True) if keep)
    return Group(group.prompt, rollouts, recompute=group.recompute[group.keep])


def _check_weights(saved: Mapping[str, Any], model: torch.nn.Module, name: str) -> None:
    """Raise ValueError unless ``saved`` has the weights of ``model`` by name, all finite."""
    _check_tensors(saved, model.state_dict(), name)


def _check_adam(saved: Mapping[str, Any], optimizer: torch.optim.Optimizer, name: str) -> None:
    """Raise ValueError unless ``saved`` is a state of the Adam ``optimizer`` with the same settings."""
    groups = optimizer.state_dict()["param_groups"]
    if saved.keys() != {"state", "param_groups"} or not _same_settings(saved["param_groups"], groups):
        raise _error(name, "the settings of this run", "others")
    state, weights = saved["state"], [weight for group in optimizer.param_groups for weight in group["params"]]
    if not isinstance(state, dict) or not set(state) <= set(range(len(weights))):
        raise _error(name, f"moments of {len(weights)} tensors", "others")
    for number, moments in state.items():
        weight = weights[number]
        _check_tensors(moments, {"step": torch.zeros(()), SIGNED: weight, "exp_avg_sq": weight}, name)
        if any((moment < 0).any() for key, moment in moments.items() if key != SIGNED):
            raise _error(f"what is not {SIGNED} of {name}", "at least 0", "other numbers")


def _same_settings(saved: Any, own: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether two lists of Adam's parameter groups agree in all that both say, and in all that we set.

    Versions of torch differ in the settings that they list.
    """
    if not isinstance(saved, list) or len(saved) != len(own) or not all(isinstance(group, dict) for group in saved):
        return False
    return all(
        found.keys() >= {"lr", "betas", "weight_decay", "params"}
        and all(found[name] == group[name] for name in found.keys() & group.keys())
        for found, group in zip(saved, own, strict=True)
    )


def _check_tensors(saved: Any, own: Mapping[str, torch.Tensor], name: str) -> None:
    """Raise ValueError unless ``saved`` has tensors of the names, shapes and types of ``own``, all finite."""
    if not isinstance(saved, Mapping) or saved.keys() != own.keys():
        raise _error(name, f"the {len(own)} tensors {', '.join(own):.40}", "others")
    for key, like in own.items():
        found = saved[key]
        if not isinstance(found, torch.Tensor) or found.shape != like.shape or found.dtype != like.dtype:
            got = f"{list(found.shape)} of {found.dtype}" if isinstance(found, torch.Tensor) else type(found).__name__
            raise _error(f"{key} of {name}", f"a tensor {list(like.shape)} of {like.dtype}", got)
        if not torch.isfinite(found).all():
            raise _error(f"{key} of {name}", "finite", "other numbers")


def _error(name: str, wanted: str, got: str) -> ValueError:
    return ValueError(f"{name} must be {wanted} in a saved state of the learner, got {got}; load one that is unchanged")
