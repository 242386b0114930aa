"""Discounted sums by prompt, and the same sums pooled over prompts by predicted success.

A prompt that nearly always succeeds hardly ever shows how its failures look. Other prompts with the same predicted
success do, so their statistics stand in for it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from apportion.predictors.base import check_discount
from apportion.predictors.saved import SavedValues
from apportion.predictors.statistics.beta_binomial import logit
from apportion.types import Floats

EDGE, NODES = 5.0, 41


class PooledSums:
    """Discounted sums of ``columns`` quantities by prompt id, and a ``Profile`` of them over all prompts in ``pool``.

    A prompt's own sums are multiplied by ``discount`` each time that the prompt is seen, the pooled sums by
    ``pool_discount`` at each batch. ``bandwidth`` is the width of the profile's kernel in log-odds.

    >>> sums = PooledSums(columns=1, discount=0.5, bandwidth=1.0, pool_discount=1.0)
    >>> for _ in range(2):
    ...     sums.add({"a": np.array([4.0])}, success=[0.5])
    >>> sums.own(["a", "never seen"]).tolist(), float(sums.pool.sums.sum())
    ([[6.0], [0.0]], 8.0)
    """

    def __init__(self, columns: int, discount: float, bandwidth: float, pool_discount: float) -> None:
        check_discount(discount)
        self.columns, self.discount = columns, discount
        self.pool = Profile(columns, bandwidth, pool_discount)
        self._own: dict[str, Floats] = {}

    def own(self, ids: Sequence[str]) -> Floats:
        """Return the prompts' own sums, [P, columns]; 0 for a prompt never seen."""
        return np.array([self._own.get(id, np.zeros(self.columns)) for id in ids]).reshape(-1, self.columns)

    def add(self, seen: Mapping[str, Floats], success: Any) -> None:
        """Add a batch: values [columns] by prompt id, and the prompts' predicted ``success`` [P] before the batch."""
        new = np.array(list(seen.values()))
        self.pool.add(success, new)
        self._own.update(zip(seen, map(np.copy, self.discount * self.own(list(seen)) + new), strict=True))

    def memory(self) -> dict[str, Any]:
        """Return all sums by name."""
        return {"sums": {id: own.tolist() for id, own in self._own.items()}, "pool": self.pool.sums}

    def restore(self, saved: SavedValues, low: tuple[float, ...]) -> None:
        """Replace all sums by what ``memory`` returned. Raise ValueError for a sum below ``low`` [columns]."""
        own = saved.by_prompt("sums", low)
        self._own, self.pool.sums = own, saved.array("pool", self.pool.sums.shape, low=low)


class Profile:
    """Kernel-smoothed statistics by predicted success, for prompts with little data of their own.

    Discounted sums of ``columns`` quantities are kept at nodes on the log-odds, from -5 to 5, and read through a
    Gaussian kernel of width ``bandwidth`` in log-odds. More extreme predictions count as -5 or 5. Each ``add`` first
    multiplies the sums by ``discount``. The ratio of two columns is a kernel average; beyond the outermost data it
    stays level, because the kernel gives every node some weight.

    >>> profile = Profile(columns=2)
    >>> profile.add([0.1, 0.9], [[1, 2.0], [1, 6.0]])
    >>> counts, sums = profile.at([0.01, 0.5, 0.99]).T
    >>> (sums / counts).round(2).tolist()
    [2.0, 4.0, 6.0]
    """

    def __init__(self, columns: int, bandwidth: float = 1.0, discount: float = 1.0) -> None:
        if not 0 < bandwidth < float("inf"):
            raise ValueError(f"bandwidth must be finite and above 0 in log-odds, got {bandwidth}; 1 is usual")
        check_discount(discount, called="pool_discount")
        self.bandwidth, self.discount = bandwidth, discount
        self.sums = np.zeros((NODES, columns))

    def add(self, success: Any, values: Any) -> None:
        """Add ``values`` [N, columns] at the predicted ``success`` [N]."""
        node = np.rint((_log_odds(success) + EDGE) / (2 * EDGE) * (NODES - 1)).astype(np.int64)
        self.sums *= self.discount
        np.add.at(self.sums, node, np.asarray(values, np.float64))

    def at(self, success: Any) -> Floats:
        """Return the kernel-weighted sums [P, columns] at ``success`` [P]; 0 before the first ``add``."""
        distance = (_log_odds(success)[:, None] - np.linspace(-EDGE, EDGE, NODES)) / self.bandwidth
        return np.exp(-0.5 * distance**2) @ self.sums


def _log_odds(success: Any) -> Floats:
    p = np.asarray(success, np.float64)
    with np.errstate(divide="ignore"):
        return np.clip(logit(p), -EDGE, EDGE)
