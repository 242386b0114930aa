"""From groups to the loss: advantages, weights, and the clipped surrogate over the rows that have any gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from transformers import Qwen2ForCausalLM

from apportion.advantages import Estimator, prompt_weights
from apportion.lab.policy import completion_logprobs
from apportion.lab.sampler import MAX_NEW_TOKENS, Completion
from apportion.lab.task import encode
from apportion.types import Group

Weighting = Literal["prompt", "rollout"]


@dataclass(frozen=True, slots=True)
class Row:
    """One rollout in the loss: token ids, its advantage, and its weight, of which a batch's sum to 1."""

    prompt: tuple[int, ...]
    completion: Completion
    advantage: float
    weight: float


def training_rows(groups: Sequence[Group], estimator: Estimator, weighting: Weighting = "prompt") -> list[Row]:
    """The rollouts of ``groups`` that enter the loss, advantages from their whole group.

    ``weighting`` "prompt" gives every group the same share of the loss, as the estimators that VIP analyses do;
    "rollout" gives every rollout the same, so that a prompt with more rollouts counts for more.
    """
    if not groups:
        return []
    ids = np.repeat(np.arange(len(groups)), [len(group.rollouts) for group in groups])
    advantages = estimator(np.concatenate([group.rewards for group in groups]), ids)
    weights = (prompt_weights(ids) if weighting == "prompt" else np.ones(len(ids))) / len(ids)
    rollouts = [(group.prompt, rollout) for group in groups for rollout in group.rollouts]
    keep = np.concatenate([group.keep for group in groups])
    return [
        Row(tuple(encode(prompt.text)), rollout.completion, float(advantage), float(weight))
        for (prompt, rollout), advantage, weight, kept in zip(rollouts, advantages, weights, keep, strict=True)
        if kept
    ]


def surrogate_loss(
    policy: Qwen2ForCausalLM,
    rows: Sequence[Row],
    *,
    clip_ratio: float = 0.2,
    temperature: float = 1.0,
    kl: float = 0.0,
    reference: Qwen2ForCausalLM | None = None,
) -> torch.Tensor:
    """The weighted clipped surrogate, negated; a scalar. Additive over rows, so that it may be summed in chunks.

    Each row's token terms are summed and divided by the constant ``MAX_NEW_TOKENS`` (Dr. GRPO's normalisation), so
    that a long response is not worth less a token. With ``kl`` above 0, adds ``kl`` times the k3 estimate of KL(policy
    || reference): exp(d) - d - 1 with d = log reference - log policy (Schulman 2020).
    """
    if kl > 0 and reference is None:
        raise ValueError(f"kl {kl} needs a reference policy, got none; pass reference=, or kl=0")
    prompts, completions = [row.prompt for row in rows], [row.completion.tokens for row in rows]
    logprobs, mask = completion_logprobs(policy, prompts, completions, temperature)
    behaviour = torch.zeros_like(logprobs)
    behaviour[mask] = torch.from_numpy(np.concatenate([row.completion.logprobs for row in rows]))
    advantages = torch.tensor([row.advantage for row in rows])[:, None]
    weights = torch.tensor([row.weight for row in rows])[:, None]
    ratio = (logprobs - behaviour).exp()
    objective = torch.minimum(ratio * advantages, ratio.clamp(1 - clip_ratio, 1 + clip_ratio) * advantages)
    if reference is not None and kl > 0:
        with torch.no_grad():
            anchor, _ = completion_logprobs(reference, prompts, completions, temperature)
        objective = objective - kl * ((anchor - logprobs).exp() - (anchor - logprobs) - 1)
    return -(objective * mask * weights).sum() / MAX_NEW_TOKENS
