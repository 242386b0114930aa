"""Fresh rows for allocators that draw more prompts in the middle of a batch, such as DAPO's dynamic sampling."""

from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Any

from datasets import Dataset, IterableDataset

from apportion.selection.shuffled import order_of_epoch

Row = Any
"""One row of a data set: a dictionary, as in ``datasets``."""

FEWEST_ROWS, ROWS_A_PROMPT = 1000, 100
"""Rows of a stream that are read for the prompts of a batch, at most: 1,000, and 100 for each of its prompts. A stream
may have no end, and a few prompts only."""


class FreshRows:
    """An endless stream of rows of ``dataset``, shuffled by ``seed`` in each epoch, or in its own order for ``None``.

    The trainer's own loader is independent of it. Both may deliver a prompt in one epoch, but never in one batch.
    ``drawn`` counts rows, and ``restore`` continues from such a count.
    """

    def __init__(self, dataset: Dataset | IterableDataset, seed: int | None) -> None:
        self.dataset, self.seed, self.drawn, self.epoch = dataset, seed, 0, 0
        self._stream: Iterator[Row] | None = None

    def rows(self) -> Iterator[Row]:
        """Yield the next rows without end, and count each as drawn."""
        while True:
            if isinstance(self.dataset, IterableDataset):
                row = self._next_of_stream()
            else:
                self.epoch, place = divmod(self.drawn, len(self.dataset))
                if self.seed is not None:
                    place = int(order_of_epoch(self.seed, self.epoch, len(self.dataset))[place])
                row = self.dataset[place]
            self.drawn += 1
            yield row

    def restore(self, drawn: int) -> None:
        """Continue as if ``drawn`` rows had been drawn."""
        self.drawn, self._stream = drawn, None

    def _next_of_stream(self) -> Row:
        """Return the next row of the stream, or of its shuffled buffer. The stream starts again whenever it ends."""
        if self._stream is None:
            self._stream = islice(self._epochs(), self.drawn, None)
        return next(self._stream)

    def _epochs(self) -> Iterator[Row]:
        shuffled = self.dataset if self.seed is None else self.dataset.shuffle(seed=self.seed)
        for self.epoch in range(2**31):
            shuffled.set_epoch(self.epoch)
            empty = True
            for row in shuffled:
                empty = False
                yield row
            if empty:
                raise ValueError("a stream of prompts must have rows, got none in a whole epoch; check its filters")


def draw_distinct(rows: FreshRows, count: int, held: Collection[str], id_of: Callable[[Row], str]) -> list[Row]:
    """Return the next ``count`` rows with distinct ids that are not in ``held``.

    Raises ValueError if a whole epoch has too few of them, or so many rows that one more prompt would be among them.
    """
    found: dict[str, Row] = {}
    begun: int | None = None
    most = FEWEST_ROWS + ROWS_A_PROMPT * (len(held) + count)
    for read, row in enumerate(rows.rows()):
        begun = rows.epoch if begun is None else begun
        identity = id_of(row)
        if identity not in held:
            found.setdefault(identity, row)
        if len(found) == count:
            return list(found.values())
        if rows.epoch > begun + 1 or (read > most and isinstance(rows.dataset, IterableDataset)):
            raise ValueError(
                f"the data set must have {count} more prompts than the {len(held)} of this batch, got {len(found)}; "
                "add some, let the allocator draw fewer, or name an id (id_column, allocation.id_key) if different "
                "questions share a prompt"
            )
    raise AssertionError("unreachable: rows never end")
