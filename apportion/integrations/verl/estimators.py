"""The library's advantage estimators for verl, ``apportion_rloo`` and the like: over whole groups, weighted by prompt.

verl hands an estimator the rows of a training batch and their uids. Here a uid is the key of the row, and the row holds
the columns of its group: rollouts that are in the baseline and not in the loss count too. A group of one has advantage
0. So have verl's padding rows; where verl divides by the number of rows, the others make up for them.

A batch is weighted as a whole, before verl cuts it into mini-batches: the gradients of these add up to the mean over
all prompts. Under "token-mean" that holds for one mini-batch, since each is divided by its own tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from verl.trainer.ppo.core_algos import register_adv_est

from apportion.advantages import ESTIMATORS, Weighting, needs, rollout_weights
from apportion.advantages.weights import Reduction
from apportion.integrations.verl.rows import columns_of
from apportion.types import Floats

PREFIX = "apportion_"
NAMES = tuple(PREFIX + name for name in ESTIMATORS if "baseline" not in needs(name))
"""Those that a row's group says all for: no baseline from outside."""

PADDING = "pad"
"""How the uids of verl's padding rows begin."""

LOSSES: dict[str, tuple[Reduction, bool]] = {
    "token-mean": ("sum", False),
    "token-sum": ("sum", False),
    "seq-mean-token-sum": ("sum", True),
    "seq-mean-token-sum-norm": ("sum", True),
    "seq-mean-token-mean": ("mean", True),
}
"""verl's ``loss_agg_mode``: sum or mean over a row's tokens, and whether rows are counted then, padding rows too."""

Columns = Callable[[list[str]], Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Estimated:
    """An estimator of the library as verl calls one.

    ``columns`` finds the groups of rows by their keys. With ``kl_in_reward`` what verl takes off a row's reward counts
    in its group; rollouts outside the loss have theirs as it was scored.
    """

    name: str
    weighting: Weighting
    loss: str
    kl_in_reward: bool = False
    columns: Columns = columns_of

    def __call__(
        self, token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray, **_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Advantages and returns, both [N, T], of ``token_level_rewards`` [N, T] and rows with keys ``index`` [N]."""
        keys = [str(key) for key in index]
        real = [i for i, key in enumerate(keys) if not key.startswith(PADDING)]
        weighted = np.zeros(len(keys))
        if real:
            rows = _Rows(self.columns([keys[i] for i in real]))
            given = token_level_rewards[real].sum(-1).double().cpu().numpy() if self.kl_in_reward else None
            tokens = response_mask[real].sum(-1).double().cpu().numpy()
            weighted[real] = rows.advantages(self.name, given) * rows.weights(self.weighting, self.loss, tokens)
            weighted *= len(keys) / rows.rollouts if LOSSES[self.loss][1] else 1.0
        advantages = torch.as_tensor(weighted, dtype=token_level_rewards.dtype, device=token_level_rewards.device)
        spread = advantages.unsqueeze(-1) * response_mask
        return spread, spread


class _Rows:
    """Rows [R] of groups: ``columns`` [R] are those of the group of each, and its place there.

    A rollout has a row for each output of its agent loop, nearly always one. It counts the same however it is cut: once
    in its group and once in the mean over rollouts.
    """

    def __init__(self, columns: Sequence[Mapping[str, Any]]) -> None:
        self._groups = list({own["group"]: own for own in columns}.values())
        sizes = [len(own["rewards"]) for own in self._groups]
        starts = dict(zip((own["group"] for own in self._groups), np.cumsum(sizes) - sizes, strict=True))
        self._ids = np.repeat(np.arange(len(sizes)), sizes)
        self._at = np.array([starts[own["group"]] + own["place"] for own in columns])
        self._trained, self._rollout = np.unique(self._at, return_inverse=True)

    @property
    def rollouts(self) -> int:
        """How many rollouts the rows are of."""
        return len(self._trained)

    def advantages(self, estimator: str, given: Floats | None) -> Floats:
        """Those of the rows [R] among all rollouts of their groups; ``given`` [R] are rewards less what KL takes."""
        rewards = self._column("rewards")
        if given is not None:
            np.add.at(rewards, self._at, given - rewards[self._at])
        further = {name: self._column(name) for name in needs(estimator)}
        found: Floats = ESTIMATORS[estimator](rewards, self._ids, **further)[self._at]
        return found

    def weights(self, weighting: Weighting, loss: str, tokens: Floats) -> Floats:
        """Those of the rows [R], which have ``tokens`` [R] in the loss; of one row a rollout they have the sum R."""
        reduction = LOSSES[loss][0]
        own = np.maximum(np.bincount(self._rollout, tokens), 1.0)  # verl may take all tokens of a row out of the loss
        weights = rollout_weights(self._ids[self._trained], weighting, own, reduction=reduction)[self._rollout]
        found: Floats = weights * tokens / own[self._rollout] if reduction == "mean" else weights
        return found

    def _column(self, name: str) -> Floats:
        return np.concatenate([np.asarray(own[name], np.float64) for own in self._groups])


def register(weighting: Weighting, loss: str, *, kl_in_reward: bool = False) -> None:
    """Makes ``NAMES`` known to verl in this process; again only as they were."""
    for name in NAMES:
        register_adv_est(name)(Estimated(name.removeprefix(PREFIX), weighting, loss, kl_in_reward))
