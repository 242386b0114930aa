"""Discounted sums by prompt, alone or with the same sums pooled over prompts by predicted success.

A prompt that nearly always succeeds hardly ever shows how its failures look. Other prompts with the same predicted
success do, so their statistics stand in for it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from apportion.predictors.base import check_discount
from apportion.predictors.saved import LARGEST, SavedValues
from apportion.predictors.statistics.beta_binomial import expit, logit
from apportion.types import Floats

EDGE, NODES = 5.0, 41


class DiscountedSums:
    """Sums of ``columns`` quantities by prompt id.

    When a prompt is seen again, its sums are multiplied by ``discount``.

    >>> sums = DiscountedSums(columns=1, discount=0.5)
    >>> for _ in range(2):
    ...     sums.add({"a": [4.0]})
    >>> sums.of(["a", "never seen"]).tolist(), sums.by_id
    ([[6.0], [0.0]], {'a': (6.0,)})
    """

    def __init__(self, columns: int, discount: float) -> None:
        check_discount(discount)
        self.columns, self.discount = columns, discount
        self.by_id: dict[str, tuple[float, ...]] = {}

    def of(self, ids: Iterable[str]) -> Floats:
        """Return the sums of the prompts with these ids, [P, columns]; 0 for a prompt never seen."""
        none = (0.0,) * self.columns
        return np.array([self.by_id.get(id, none) for id in ids]).reshape(-1, self.columns)

    def add(self, seen: Mapping[str, Any]) -> None:
        """Add a batch: values [columns] by prompt id."""
        new = np.array(list(seen.values())).reshape(-1, self.columns)
        self.by_id.update(zip(seen, map(tuple, (self.discount * self.of(seen) + new).tolist()), strict=True))

    def restore(self, saved: SavedValues, key: str, low: tuple[float, ...], high: float = LARGEST) -> None:
        """Replace the sums by those of a state under ``key``.

        Raise ValueError for a sum below ``low`` [columns] or above ``high``.
        """
        self.by_id = {id: tuple(own.tolist()) for id, own in saved.by_prompt(key, low, high).items()}


class PooledSums:
    """``DiscountedSums`` by prompt in ``own``, and sums of the same quantities over all prompts in ``pool``.

    The pooled sums are kept at nodes on the log-odds of predicted success, from -5 to 5, and read through a Gaussian
    kernel of width ``bandwidth`` in log-odds. More extreme predictions count as -5 or 5. Each ``add`` first multiplies
    them by ``pool_discount``. The ratio of two columns is a kernel average; beyond the outermost data it stays level,
    because the kernel gives every node some weight.

    >>> sums = PooledSums(columns=2, discount=1.0, bandwidth=1.0, pool_discount=1.0)
    >>> sums.add({"a": [1, 2.0], "b": [1, 6.0]}, [0.1, 0.9])
    >>> counts, totals = sums.at([0.01, 0.5, 0.99]).T
    >>> (totals / counts).round(2).tolist()
    [2.0, 4.0, 6.0]
    """

    def __init__(self, columns: int, discount: float, bandwidth: float, pool_discount: float) -> None:
        check_discount(pool_discount, called="pool_discount")
        self.bandwidth, self.pool_discount = bandwidth, pool_discount
        self.own, self.pool = DiscountedSums(columns, discount), np.zeros((NODES, columns))

    def add(self, seen: Mapping[str, Any], success: Any) -> None:
        """Add a batch: values [columns] by prompt id, and the prompts' predicted ``success`` [P] before the batch."""
        node = np.rint((_log_odds(success) + EDGE) / (2 * EDGE) * (NODES - 1)).astype(np.int64)
        self.pool *= self.pool_discount
        np.add.at(self.pool, node, np.array(list(seen.values()), np.float64))
        self.own.add(seen)

    def at(self, success: Any) -> Floats:
        """Return the kernel-weighted pooled sums [P, columns] at ``success`` [P]; 0 before the first ``add``."""
        distance = (_log_odds(success)[:, None] - np.linspace(-EDGE, EDGE, NODES)) / self.bandwidth
        return np.exp(-0.5 * distance**2) @ self.pool

    def memory(self) -> dict[str, Any]:
        """Return all sums by name."""
        return {"sums": {id: list(own) for id, own in self.own.by_id.items()}, "pool": self.pool}

    def restore(self, saved: SavedValues, low: tuple[float, ...]) -> None:
        """Replace all sums by what ``memory`` returned. Raise ValueError for a sum below ``low`` [columns]."""
        pool = saved.array("pool", self.pool.shape, low=low)
        self.own.restore(saved, "sums", low)
        self.pool = pool


def _log_odds(success: Any) -> Floats:
    return logit(np.clip(success, *expit(np.array([-EDGE, EDGE]))))
