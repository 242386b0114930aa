"""What each prompt showed, and what prompts like it did: sums that are discounted and kept between batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from apportion.predictors.base import check_discount
from apportion.predictors.profile import Profile
from apportion.types import Floats


class PooledSums:
    """Discounted sums of ``columns`` quantities by prompt id, and a ``Profile`` of them over all prompts in ``pool``.

    A prompt's own sums are discounted by ``discount`` each time that it is seen, the pooled ones by ``pool_discount``
    each batch; ``bandwidth``, in log-odds, is how alike prompts must be.

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
        """The sums of these prompts, [P, columns]; 0 for one never seen."""
        return np.array([self._own.get(id, np.zeros(self.columns)) for id in ids]).reshape(-1, self.columns)

    def add(self, seen: Mapping[str, Floats], success: Any) -> None:
        """Adds what a batch showed by prompt id, [columns] each, where success was believed to be ``success`` [P]."""
        new = np.array(list(seen.values()))
        self.pool.add(success, new)
        self._own.update(zip(seen, map(np.copy, self.discount * self.own(list(seen)) + new), strict=True))

    def memory(self) -> dict[str, Any]:
        """All that was added, by name; not a copy."""
        return {"sums": self._own, "pool": self.pool.sums}

    def remember(self, memory: Mapping[str, Any]) -> None:
        """Takes over what ``memory`` gave."""
        self._own, self.pool.sums = memory["sums"], memory["pool"]
