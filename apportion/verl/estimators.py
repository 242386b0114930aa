"""The library's advantage estimators for verl, such as ``apportion_rloo``: on whole groups, with weights by prompt.

verl passes an estimator the rows of a training batch and their uids. Here a uid is the key of the row, which holds the
columns of its group. So rollouts count that are in the baseline but not in the loss. A group of one has advantage 0,
unless the estimator has a baseline from history or from other prompts. verl's padding rows have 0. If verl divides by
the number of rows, the other rows are scaled to make up for them.

A batch is weighted as a whole, before verl splits it into mini-batches, whose gradients add up to the mean over all
prompts. With "token-mean" this is exact for one mini-batch only, because each is divided by its own tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from verl.trainer.ppo.core_algos import register_adv_est

from apportion.advantages import ESTIMATORS, Reduction, Weighting, default_weighting, needs, rollout_weights
from apportion.types import Floats
from apportion.verl.coordinator.settings import PREFIX
from apportion.verl.rows import columns_of

NAMES = tuple(PREFIX + name for name in ESTIMATORS)
"""The estimators by their names in verl. They need only the columns of the row's group."""

PADDING = "pad"
"""The prefix of the uids of verl's padding rows."""

LOSSES: dict[str, tuple[Reduction, bool]] = {
    "token-mean": ("sum", False),
    "token-sum": ("sum", False),
    "seq-mean-token-sum": ("sum", True),
    "seq-mean-token-sum-norm": ("sum", True),
    "seq-mean-token-mean": ("mean", True),
}
"""verl's ``loss_agg_mode``: how a row's tokens are reduced (sum or mean), and whether it divides by the number of
rows."""

OWN_AGGREGATION = {"sapo": "seq-mean-token-mean"}
"""The values of verl's ``policy_loss.loss_mode`` that always use one ``loss_agg_mode``, whatever is set."""

Columns = Callable[[list[str]], Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class GroupEstimator:
    """One of the library's estimators in the form that verl calls.

    ``columns`` finds the groups of rows by their keys. With ``kl_in_reward`` the penalty that verl subtracts from a
    row's reward counts in its group; rollouts outside the loss keep their reward.
    """

    name: str
    weighting: Weighting
    loss: str
    kl_in_reward: bool = False
    columns: Columns = columns_of

    def __call__(
        self, token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray, **_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return advantages and returns, both [N, T], of ``token_level_rewards`` [N, T]; ``index`` [N] are row keys."""
        keys = [str(key) for key in index]
        real = [i for i, key in enumerate(keys) if not key.startswith(PADDING)]
        weighted = np.zeros(len(keys))
        if real:
            penalized = token_level_rewards[real].sum(-1).double().cpu().numpy() if self.kl_in_reward else None
            tokens = response_mask[real].sum(-1).double().cpu().numpy()
            weighted[real], rollouts = self._weighted(self.columns([keys[i] for i in real]), tokens, penalized)
            weighted *= len(keys) / rollouts if LOSSES[self.loss][1] else 1.0
        advantages = torch.as_tensor(weighted, dtype=token_level_rewards.dtype, device=token_level_rewards.device)
        spread = advantages.unsqueeze(-1) * response_mask
        return spread, spread

    def _weighted(
        self, rows: Sequence[Mapping[str, Any]], tokens: Floats, penalized: Floats | None
    ) -> tuple[Floats, int]:
        """Return the weighted advantages [R] of ``rows`` [R], and the number of their rollouts.

        ``rows`` hold the columns of the group of each, and its position there. ``tokens`` [R] are those in the loss,
        and ``penalized`` [R] replaces their rewards. A rollout has one row for each output of its agent loop, nearly
        always one. However many rows it has, it counts once in its group and once in the mean over rollouts. With one
        row a rollout the weights have sum R, before each is multiplied by the weight of its prompt.
        """
        groups = {row["group"]: row for row in rows}
        sizes = [len(group["rewards"]) for group in groups.values()]
        starts = dict(zip(groups, np.cumsum(sizes) - sizes, strict=True))
        ids = np.repeat(np.arange(len(sizes)), sizes)
        at = np.array([starts[row["group"]] + row["position"] for row in rows])
        trained, rollout = np.unique(at, return_inverse=True)
        rewards, *further = (
            np.concatenate([np.asarray(group[name], np.float64) for group in groups.values()])
            for name in ("rewards", *needs(self.name))
        )
        if penalized is not None:
            np.add.at(rewards, at, penalized - rewards[at])
        advantages = ESTIMATORS[self.name](rewards, ids, **dict(zip(needs(self.name), further, strict=True)))[at]
        reduction = LOSSES[self.loss][0]
        own = np.maximum(np.bincount(rollout, tokens), 1.0)  # verl may mask all tokens of a row
        weights = rollout_weights(ids[trained], self.weighting, own, reduction=reduction)[rollout]
        weights = weights * np.array([row["weight"] for row in rows])
        weights = weights * tokens / own[rollout] if reduction == "mean" else weights
        return advantages * weights, len(trained)


def register(weighting: Weighting | None, loss: str, *, kl_in_reward: bool = False) -> None:
    """Register ``NAMES`` with verl in this process, each with ``weighting``, or with its own default if that is None.

    A second call must have the same arguments.
    """
    for name in NAMES:
        own = name.removeprefix(PREFIX)
        register_adv_est(name)(GroupEstimator(own, weighting or default_weighting(own), loss, kl_in_reward))
