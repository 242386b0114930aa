"""Fresh prompts for allocators that draw more of them in the middle of a batch, as DAPO's dynamic sampling does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from datasets import Dataset, IterableDataset

from apportion.types import Counts

Row = dict[str, Any]


class FreshRows:
    """Rows of ``dataset`` in an order of its own, epoch by epoch, seeded; what was drawn is remembered.

    TRL's loader goes through the data set in its order, and knows nothing of these: a prompt may come from both in one
    epoch, never twice in one batch.
    """

    def __init__(self, dataset: Dataset | IterableDataset, seed: int) -> None:
        self.dataset, self.seed, self.drawn, self.epoch = dataset, seed, 0, 0
        self._stream: Iterator[Row] | None = None

    def rows(self) -> Iterator[Row]:
        """The next rows, without end; each that is taken counts as drawn."""
        while True:
            row = self._next()
            self.drawn += 1
            yield row

    def restore(self, drawn: int) -> None:
        """Goes on as if ``drawn`` rows had been drawn."""
        self.drawn, self._stream = drawn, None

    def _next(self) -> Row:
        if isinstance(self.dataset, IterableDataset):
            return self._streamed()
        self.epoch, place = divmod(self.drawn, len(self.dataset))
        row: Row = self.dataset[int(_order(self.seed, self.epoch, len(self.dataset))[place])]
        return row

    def _streamed(self) -> Row:
        """Buffered shuffles, a new one each time that the stream ends."""
        if self._stream is None:
            self._stream = self._epochs()
            for _ in range(self.drawn):
                next(self._stream)
        return next(self._stream)

    def _epochs(self) -> Iterator[Row]:
        shuffled = self.dataset.shuffle(seed=self.seed)
        for self.epoch in range(2**31):
            shuffled.set_epoch(self.epoch)
            yield from shuffled


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, size: int) -> Counts:
    return np.random.default_rng([seed, epoch]).permutation(size)


def distinct(rows: FreshRows, count: int, held: Collection[str], id_of: Callable[[Row], str]) -> list[Row]:
    """The next ``count`` rows whose ids are neither in ``held`` nor among each other.

    Raises ValueError where the data set has too few of them: a whole epoch went by. Its rows may repeat a prompt.
    """
    found: dict[str, Row] = {}
    begun: int | None = None
    for row in rows.rows():
        begun = rows.epoch if begun is None else begun
        identity = id_of(row)
        if identity not in held:
            found.setdefault(identity, row)
        if len(found) == count:
            return list(found.values())
        if rows.epoch > begun + 1:
            raise ValueError(
                f"the data set must have {count} more prompts than the {len(held)} of this batch, got {len(found)}; "
                "give it more, let the allocator draw fewer, or name an id_column where prompts are alike"
            )
    raise AssertionError("rows are without end")
