"""The library's advantage estimators for verl, such as ``apportion_rloo``: over whole groups, weighted by prompt.

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
"""The estimators as verl knows them. They need only the columns of the row's group."""

PADDING = "pad"
"""The prefix of the uids of verl's padding rows."""

LOSSES: dict[str, tuple[Reduction, bool]] = {
    "token-mean": ("sum", False),
    "token-sum": ("sum", False),
    "seq-mean-token-sum": ("sum", True),
    "seq-mean-token-sum-norm": ("sum", True),
    "seq-mean-token-mean": ("mean", True),
}
"""verl's ``loss_agg_mode``: sum or mean over a row's tokens, and whether it divides by the number of rows."""

OWN_AGGREGATION = {"sapo": "seq-mean-token-mean"}
"""The values of verl's ``policy_loss.loss_mode`` that always use one ``loss_agg_mode``, whatever is set."""

Columns = Callable[[list[str]], Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class GroupEstimator:
    """An estimator of the library, as verl calls one.

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
            rows = _GroupRows(self.columns([keys[i] for i in real]))
            penalized = token_level_rewards[real].sum(-1).double().cpu().numpy() if self.kl_in_reward else None
            tokens = response_mask[real].sum(-1).double().cpu().numpy()
            weighted[real] = rows.advantages(self.name, penalized) * rows.weights(self.weighting, self.loss, tokens)
            weighted *= len(keys) / rows.rollouts if LOSSES[self.loss][1] else 1.0
        advantages = torch.as_tensor(weighted, dtype=token_level_rewards.dtype, device=token_level_rewards.device)
        spread = advantages.unsqueeze(-1) * response_mask
        return spread, spread


class _GroupRows:
    """Rows [R] of ``rollouts``. ``columns`` [R] holds the group of each row, and its position there.

    A rollout has one row for each output of its agent loop, nearly always one. However many rows it has, it counts once
    in its group and once in the mean over rollouts.
    """

    def __init__(self, columns: Sequence[Mapping[str, Any]]) -> None:
        self._groups = list({own["group"]: own for own in columns}.values())
        sizes = [len(own["rewards"]) for own in self._groups]
        starts = dict(zip((own["group"] for own in self._groups), np.cumsum(sizes) - sizes, strict=True))
        self._ids = np.repeat(np.arange(len(sizes)), sizes)
        self._at = np.array([starts[own["group"]] + own["position"] for own in columns])
        self._trained, self._rollout = np.unique(self._at, return_inverse=True)
        self.rollouts = len(self._trained)
        self._of_prompt = np.array([own.get("weight", 1.0) for own in columns])

    def advantages(self, estimator: str, penalized: Floats | None) -> Floats:
        """Return the rows' advantages [R] among all rollouts of their groups; ``penalized`` [R] replaces rewards."""
        rewards = self._column("rewards")
        if penalized is not None:
            np.add.at(rewards, self._at, penalized - rewards[self._at])
        further = {name: self._column(name) for name in needs(estimator)}
        return ESTIMATORS[estimator](rewards, self._ids, **further)[self._at]

    def weights(self, weighting: Weighting, loss: str, tokens: Floats) -> Floats:
        """Return the rows' weights [R]; ``tokens`` [R] are those in the loss.

        With one row a rollout their sum is R, before each is multiplied by the weight of its prompt.
        """
        reduction = LOSSES[loss][0]
        own = np.maximum(np.bincount(self._rollout, tokens), 1.0)  # verl may mask all tokens of a row
        weights = rollout_weights(self._ids[self._trained], weighting, own, reduction=reduction)[self._rollout]
        weights = weights * self._of_prompt
        return weights * tokens / own[self._rollout] if reduction == "mean" else weights

    def _column(self, name: str) -> Floats:
        return np.concatenate([np.asarray(own[name], np.float64) for own in self._groups])


def register(weighting: Weighting | None, loss: str, *, kl_in_reward: bool = False) -> None:
    """Register ``NAMES`` with verl in this process, each with ``weighting``, or with its own default if that is None.

    A second call must have the same arguments.
    """
    for name in NAMES:
        own = name.removeprefix(PREFIX)
        register_adv_est(name)(GroupEstimator(own, weighting or default_weighting(own), loss, kl_in_reward))
