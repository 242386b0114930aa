"""TRL's advantage formulas on a NaN-padded [P, G] table, for groups of any size.

A group is a row of the table, and G is the size of the largest group. TRL's formulas already skip NaN, the score of a
completion that no reward function scored. So a batch of equal groups takes the same steps as in TRL and gets the same
advantages to the last bit.

A group of one and a rollout without a reward have advantage 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from trl.trainer.utils import nanstd

EPSILON = 1e-4


def without_failures(scores: Tensor) -> Tensor:
    """Return ``scores`` [N, F] with NaN where a reward function failed, which is an infinite score."""
    return scores.masked_fill(scores.isinf(), torch.nan)


def weighted_rewards(scores: Tensor, weights: Tensor) -> Tensor:
    """Return rewards [N]: sums of ``scores`` [N, F] times ``weights`` [F]; NaN for a rollout that nothing scored."""
    sums = (scores * weights.unsqueeze(0)).nansum(dim=1)
    sums[torch.isnan(scores).all(dim=1)] = torch.nan
    return sums


@dataclass(frozen=True)
class Grouped:
    """Rewards [N] of N rollouts, NaN without one, and group sizes [P].

    ``scores`` [N, F] are those of F reward functions with ``weights`` [F], if they are normalised one by one. RLOO
    clips rewards to ``clip``, and subtracts ``penalties`` [N], ``beta`` times the divergence from the reference.
    """

    rewards: Tensor
    sizes: Tensor
    scores: Tensor
    weights: Tensor
    penalties: Tensor | float = 0.0
    clip: Sequence[float] | None = None

    @cached_property
    def penalised(self) -> Tensor:
        """Rewards [N] as RLOO compares them: clipped first, and penalised then."""
        clipped = self.rewards.clamp(*self.clip) if self.clip else self.rewards
        return clipped - self.penalties

    @cached_property
    def group(self) -> Tensor:
        """The group [N] of each rollout."""
        return torch.repeat_interleave(self.sizes)

    @cached_property
    def scored(self) -> Tensor:
        """The number [N] of rollouts with a reward in the group of each rollout."""
        return (~torch.isnan(self.table(self.rewards))).sum(dim=1)[self.group]

    def table(self, values: Tensor) -> Tensor:
        """Return ``values`` [N, ...] of P groups, at least one, as [P, G, ...], padded with NaN."""
        return pad_sequence(values.split(self.sizes.tolist()), batch_first=True, padding_value=torch.nan)


def grpo(grouped: Grouped, scale_rewards: str, aggregation: str) -> Tensor:
    """Return GRPO's advantages [N]. TRL's ``scale_rewards`` is "group", "batch" or "none".

    ``aggregation`` is TRL's ``multi_objective_aggregation``. Under "normalize_then_sum" each reward function is centred
    and scaled within the group, and the sum of them within the batch. The other is "sum_then_normalize".
    """
    if aggregation == "normalize_then_sum":
        return _without_singletons(_normalize_then_sum(grouped), grouped)
    rewards, group = grouped.rewards, grouped.group
    table = grouped.table(rewards)
    advantages = rewards - torch.nanmean(table, dim=1)[group]
    if scale_rewards == "batch":
        advantages = advantages / (nanstd(rewards) + EPSILON)
    elif scale_rewards != "none":
        advantages = advantages / (nanstd(table, dim=1)[group] + EPSILON)
    return _without_singletons(advantages, grouped)


def rloo(grouped: Grouped, normalize: bool) -> Tensor:
    """Return RLOO's advantages [N]: penalised rewards minus the mean of the others, whitened if ``normalize``."""
    rewards = grouped.penalised
    sums = torch.nansum(grouped.table(rewards), dim=1)[grouped.group]
    advantages = rewards - (sums - rewards) / (grouped.scored - 1)
    if normalize:
        advantages = (advantages - torch.nanmean(advantages)) / (nanstd(advantages) + EPSILON)
    return _without_singletons(advantages, grouped)


def zero_deviation(grouped: Grouped, scale_rewards: str = "group") -> float:
    """Return TRL's ``frac_reward_zero_std``, the share of groups of equal rewards. Under "batch" it is 0 or 1.

    As in TRL, RLOO's rewards are compared with their penalties, and without them nothing of GRPO changes.
    """
    if not len(grouped.sizes):
        return 1.0
    if scale_rewards == "batch":
        return float(torch.isclose(nanstd(grouped.rewards), torch.zeros(())))
    deviations = torch.nan_to_num(nanstd(grouped.table(grouped.penalised), dim=1), nan=0.0)
    return torch.isclose(deviations, torch.zeros_like(deviations)).float().mean().item()


def _normalize_then_sum(grouped: Grouped) -> Tensor:
    table, group = grouped.table(grouped.scores), grouped.group
    centred = grouped.scores - torch.nanmean(table, dim=1)[group]
    scaled = centred / (nanstd(table, dim=1)[group] + EPSILON)
    rewards = (scaled * grouped.weights.unsqueeze(0)).nansum(dim=1)
    rewards[torch.isnan(grouped.scores).all(dim=1)] = torch.nan
    return (rewards - torch.nanmean(rewards)) / (nanstd(rewards) + EPSILON)


def _without_singletons(advantages: Tensor, grouped: Grouped) -> Tensor:
    """Return the advantages with 0 for rollouts that have no other scored rollout in their group."""
    advantages = torch.nan_to_num(advantages, nan=0.0, posinf=0.0, neginf=0.0)
    return advantages.masked_fill(grouped.scored < 2, 0.0)
