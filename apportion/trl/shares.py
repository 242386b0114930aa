"""Split the rows for the loss among the ranks: each trains on equally many, a multiple of its micro-batches.

Rows stay on the rank that sampled them if possible. A rank with more than its quota sends its last rows away. A rank
with fewer receives these, and then rows of earlier steps. Masked rows fill up what is missing on every rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from apportion.trl.generation import Reused, Share


@dataclass(frozen=True)
class LossRow:
    """A row for the loss and its advantage. ``source`` is its place among all rows of this step, or an earlier row."""

    advantage: float
    source: int | Reused


def row_locations(rounds: Sequence[int], ranks: int) -> list[tuple[int, int]]:
    """Return (rank, index on that rank) of every row of the step. ``rounds`` are numbers of rows, each split evenly.

    >>> row_locations([4, 2], ranks=2)
    [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2)]
    """
    found, before = [], 0
    for rows in rounds:
        each = rows // ranks
        found += [(place // each, before + place % each) for place in range(rows)]
        before += each
    return found


def rows_per_rank(rows: int, ranks: int, chunks: int) -> int:
    """Return the number of rows of each rank, at least one in each of its ``chunks`` micro-batches.

    >>> rows_per_rank(20, ranks=2, chunks=4), rows_per_rank(0, ranks=2, chunks=4)
    (12, 4)
    """
    return chunks * max(1, -(-rows // (ranks * chunks)))


def split_rows(rows: Sequence[LossRow], rounds: Sequence[int], ranks: int, chunks: int) -> list[Share]:
    """Return the share of every rank. Rows that stay on their rank keep their order."""
    each, locations = rows_per_rank(len(rows), ranks, chunks), row_locations(rounds, ranks)
    quotas = [len(rows) // ranks + (rank < len(rows) % ranks) for rank in range(ranks)]
    sampled: list[list[tuple[int, float]]] = [[] for _ in range(ranks)]
    reused: list[tuple[Reused, float]] = []
    for row in rows:
        if isinstance(row.source, Reused):
            reused.append((row.source, row.advantage))
        else:
            rank, index = locations[row.source]
            sampled[rank].append((index, row.advantage))
    for own in sampled:
        own.sort()
    sent = [advantage for own, quota in zip(sampled, quotas, strict=True) for _, advantage in own[quota:]]
    spare, shares = iter([*enumerate(sent), *reused]), []
    for own, quota in zip(sampled, quotas, strict=True):
        kept = own[:quota]
        added = list(islice(spare, quota - len(kept)))
        shares.append(
            Share(
                own=[index for index, _ in kept],
                sends=[index for index, _ in own[quota:]],
                receives=[source for source, _ in added if isinstance(source, int)],
                reused=[source for source, _ in added if isinstance(source, Reused)],
                advantages=[advantage for _, advantage in (*kept, *added)],
                padding=each - len(kept) - len(added),
            )
        )
    return shares
