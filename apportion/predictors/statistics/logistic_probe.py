"""A logistic regression of verdicts on embeddings, fitted by Adam, and the outcomes that it is fitted to.

References: D. P. Kingma, J. Ba, "Adam: A Method for Stochastic Optimization", 2015, Algorithm 1, with weight decay
added to the gradient as in ``torch.optim.Adam``; the replay of recent cycles in T. Wang, D. Ding, E. Dobriban, S. Li,
Y. Sun, "Where to Spend Rollouts", arXiv 2605.07114, caption of Figure 6.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.checks import LARGEST_INTEGER
from apportion.predictors.saved import SavedValues
from apportion.predictors.statistics.beta_binomial import expit
from apportion.types import Floats

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
LARGEST_WEIGHT = 1e6

Features = NDArray[np.float32]


def features_of(embeddings: NDArray[Any]) -> Features:
    """Return features [P, d + 1] of ``embeddings`` [P, d]: each row scaled to a mean square of 1, and a column of 1.

    A row of zeros stays one.

    >>> features_of(np.array([[3.0, 4.0], [0.0, 0.0]])).round(2).tolist()
    [[0.8500000238418579, 1.1299999952316284, 1.0], [0.0, 0.0, 1.0]]
    """
    x = np.asarray(embeddings, np.float64)
    size = np.sqrt((x**2).mean(axis=1, keepdims=True))
    scaled = np.divide(x, size, out=np.zeros_like(x), where=size > 0)
    return np.concatenate([scaled, np.ones((len(x), 1))], axis=1).astype(np.float32)


@dataclass(frozen=True)
class ProbeData:
    """Verdicts of n groups in one cycle or more. A cycle is one batch.

    Args:
        features: [n, d + 1].
        shares: [n], the share of right rollouts of each group.
        trials: [n], its verified rollouts.
        ages: [n], how many cycles ago it was: 0 for the latest.
    """

    features: Features
    shares: Floats
    trials: Floats
    ages: NDArray[np.int64]

    def after(self, earlier: "ProbeData | None", cycles: int | None = None) -> "ProbeData":
        """Return ``earlier`` outcomes, a cycle older, and these; the latest ``cycles`` cycles, or all of them."""
        if earlier is None:
            return self
        kept = earlier.ages + 1 < (LARGEST_INTEGER if cycles is None else cycles)
        return ProbeData(
            np.concatenate([earlier.features[kept], self.features]),
            np.concatenate([earlier.shares[kept], self.shares]),
            np.concatenate([earlier.trials[kept], self.trials]),
            np.concatenate([earlier.ages[kept] + 1, self.ages]),
        )

    @staticmethod
    def saved(outcomes: "ProbeData | None") -> dict[str, Any]:
        """Return the fields by name, or None for each if there are no outcomes."""
        return {key: getattr(outcomes, key, None) for key in ("features", "shares", "trials", "ages")}

    @classmethod
    def restored(cls, saved: SavedValues) -> "ProbeData | None":
        """Return what ``saved`` was made from. Raise ValueError for anything else."""
        if all(saved.values[key] is None for key in cls.saved(None)):
            return None
        x = saved.array("features", (None, None), dtype=np.float32)
        if not x.size or (x[:, -1] != 1).any() or (np.abs(x) > x.shape[1]).any():
            raise saved.refusal("features", "the features of at least one group")
        size = (len(x),)
        shares = saved.array("shares", size, low=0, high=1)
        trials = saved.array("trials", size, low=1, high=LARGEST_INTEGER)
        return cls(x, shares, trials, saved.array("ages", size, low=0, dtype=np.int64))


def descend(
    outcomes: ProbeData,
    weights: Floats,
    steps: int,
    *,
    rate: float,
    weight_decay: float,
    discount: float = 1.0,
    base: Floats | None = None,
) -> Floats:
    """Return ``weights`` [d + 1] after ``steps`` steps of Adam, whose running means start from 0.

    The loss is the mean cross-entropy per rollout at log-odds ``features @ (base + weights)``, a rollout of age t
    counting ``discount`` ** t, plus ``weight_decay`` / 2 times the sum of squared ``weights``. ``base`` [d + 1] is 0 by
    default.

    In 5 steps no weight moves by more than 5.1 times ``rate``, whatever the outcomes are. In any number of steps it
    moves by 7.3 times ``rate`` a step at most. Both follow from the Cauchy-Schwarz inequality.

    >>> one = ProbeData(np.ones((1, 1), np.float32), np.ones(1), np.ones(1), np.zeros(1, np.int64))
    >>> descend(one, np.zeros(1), 1, rate=0.001, weight_decay=0.0).round(6).tolist()
    [0.001]
    """
    x, counts = outcomes.features.astype(np.float64), outcomes.trials * discount**outcomes.ages
    fixed = 0.0 if base is None else x @ base
    means, squares = np.zeros_like(weights), np.zeros_like(weights)
    for step in range(1, steps + 1):
        gradient = x.T @ (counts * (expit(fixed + x @ weights) - outcomes.shares)) / counts.sum()
        gradient = gradient + weight_decay * weights
        means = BETA_1 * means + (1 - BETA_1) * gradient
        squares = BETA_2 * squares + (1 - BETA_2) * gradient**2
        size = np.sqrt(squares / (1 - BETA_2**step)) + EPSILON
        weights = weights - rate * means / (1 - BETA_1**step) / size
    return weights


def restored_probe(saved: SavedValues) -> tuple[Floats | None, ProbeData | None]:
    """Return the weights [d + 1] and the outcomes of a saved state; None for what it has not.

    Raises ValueError for others, and for outcomes that do not fit the weights.
    """
    weights, outcomes = None, ProbeData.restored(saved)
    if saved.values["weights"] is not None:
        weights = saved.array("weights", (None,), low=-LARGEST_WEIGHT, high=LARGEST_WEIGHT)
    if outcomes is not None and (weights is None or outcomes.features.shape[1] != len(weights)):
        raise saved.refusal("weights", f"an array [{outcomes.features.shape[1]}]")
    return weights, outcomes
