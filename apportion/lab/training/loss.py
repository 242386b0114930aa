"""From groups to the loss: advantages, weights, and the clipped surrogate."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from transformers import Qwen2ForCausalLM

from apportion.lab.policy.network import completion_logprobs
from apportion.lab.policy.sampler import MAX_NEW_TOKENS, LedgerCompletion
from apportion.lab.world.task import encode
from apportion.scheduler import TrainerAllocation
from apportion.types import Floats, Group


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRow:
    """One rollout in the loss: its token ids, advantage and weight.

    The weights of a batch sum to 1, unless a selector gives its prompts importance weights. ``advantage`` is one
    number, or [T] with a critic. A row is ``reused`` if it was sampled in an earlier step. With ``recompute`` its
    importance ratio still starts at 1.
    """

    prompt: tuple[int, ...]
    completion: LedgerCompletion
    advantage: float | Floats
    weight: float
    reused: bool = False
    recompute: bool = False


def training_rows(groups: Sequence[Group], decisions: TrainerAllocation) -> list[TrainingRow]:
    """Return the rollouts of ``groups`` that enter the loss, with advantages from their whole group.

    The ``decisions`` are the estimator, its baseline, and what has the same share of the loss: every group, as in the
    estimators that VIP analyses ("prompt"), every rollout or every token. A selection may weight its prompts.
    """
    return rows_with(groups, decisions.advantages(groups).tolist(), decisions.weights(groups)) if groups else []


def rows_with(groups: Sequence[Group], advantages: Sequence[float | Floats], weights: Floats) -> list[TrainingRow]:
    """Return the rollouts of ``groups`` that enter the loss.

    ``advantages`` and ``weights`` have an entry for each of all rollouts. The weights are divided by the rows.
    """
    rollouts = [(group.prompt, rollout) for group in groups for rollout in group.rollouts]
    keep, recompute = (np.concatenate([getattr(group, mask) for group in groups]) for mask in ("keep", "recompute"))
    kept = np.flatnonzero(keep).tolist()
    return [
        TrainingRow(
            tuple(encode(rollouts[i][0].text)),
            rollouts[i][1].completion,
            advantages[i],
            float(weights[i] / len(kept)),
            reused=rollouts[i][1].step is not None,
            recompute=bool(recompute[i]),
        )
        for i in kept
    ]


@torch.no_grad()
def refresh_logprobs(
    policy: Qwen2ForCausalLM, rows: Sequence[TrainingRow], temperature: float = 1.0
) -> list[TrainingRow]:
    """Return the rows. Those to recompute get the log-probabilities of ``policy``: AR3PO's Option I."""
    stale = [row for row in rows if row.recompute]
    prompts, completions = [row.prompt for row in stale], [row.completion.tokens for row in stale]
    fresh = iter(completion_logprobs(policy, prompts, completions, temperature)[0].numpy())

    def refreshed(row: TrainingRow) -> TrainingRow:
        return replace(row, completion=replace(row.completion, logprobs=next(fresh)[: len(row.completion.tokens)]))

    return [refreshed(row) if row.recompute else row for row in rows]


def surrogate_loss(
    policy: Qwen2ForCausalLM,
    rows: Sequence[TrainingRow],
    clip_ratio: float = 0.2,
    temperature: float = 1.0,
    kl: float = 0.0,
    reference: Qwen2ForCausalLM | None = None,
) -> torch.Tensor:
    """Return the negated, weighted, clipped surrogate, a scalar. It is additive over rows, so chunks can be summed.

    Each row's token terms are summed and divided by the constant ``MAX_NEW_TOKENS`` (Dr. GRPO's normalisation), so a
    token weighs the same in a long response. ``kl`` above 0 adds ``kl`` times the k3 estimate of KL(policy ||
    reference): exp(d) - d - 1 with d = log reference - log policy (Schulman 2020).
    """
    prompts, completions = [row.prompt for row in rows], [row.completion.tokens for row in rows]
    logprobs, mask = completion_logprobs(policy, prompts, completions, temperature)
    behaviour = torch.zeros_like(logprobs)
    behaviour[mask] = torch.from_numpy(np.concatenate([row.completion.logprobs for row in rows]))
    advantages = torch.zeros_like(logprobs)
    of_tokens = [np.broadcast_to(row.advantage, len(row.completion.tokens)) for row in rows]
    advantages[mask] = torch.from_numpy(np.concatenate(of_tokens)).float()
    weights = torch.tensor([row.weight for row in rows])[:, None]
    ratio = (logprobs - behaviour).exp()
    objective = torch.minimum(ratio * advantages, ratio.clamp(1 - clip_ratio, 1 + clip_ratio) * advantages)
    if reference is not None and kl > 0:
        with torch.no_grad():
            anchor, _ = completion_logprobs(reference, prompts, completions, temperature)
        objective = objective - kl * ((anchor - logprobs).exp() - (anchor - logprobs) - 1)
    return -(objective * mask * weights).sum() / MAX_NEW_TOKENS
