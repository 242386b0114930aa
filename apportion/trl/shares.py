"""Split the rows for the loss among the ranks: each trains on equally many, a multiple of its micro-batches.

Rows stay on the rank that sampled them if possible. A rank with more than its quota sends its last rows away. A rank
with fewer receives these, and then rows of earlier steps. Masked rows fill up what is missing on every rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter

from apportion.trl.rows import Table


@dataclass(frozen=True)
class Reused:
    """A row of an earlier step. With ``recompute`` it gets log-probabilities under the current policy."""

    row: Table
    recompute: bool


@dataclass(frozen=True)
class LossRow:
    """A row for the loss and its advantage.

    ``source`` is the rank of a row of this step and the index on this rank, or an earlier row.
    """

    advantage: float
    source: tuple[int, int] | Reused


@dataclass(frozen=True)
class Share:
    """The ``rows`` that one rank trains on: its own, those of other ranks, then earlier ones. ``padding`` is masked."""

    rows: Sequence[LossRow]
    padding: int = 0

    @property
    def places(self) -> list[tuple[int, int]]:
        """Where the rows of this step are."""
        return [row.source for row in self.rows if isinstance(row.source, tuple)]

    @property
    def reused(self) -> list[Reused]:
        """The rows of earlier steps."""
        return [row.source for row in self.rows if isinstance(row.source, Reused)]


def rows_per_rank(rows: int, ranks: int, chunks: int) -> int:
    """Return the number of rows of each rank, at least one in each of its ``chunks`` micro-batches.

    >>> rows_per_rank(20, ranks=2, chunks=4), rows_per_rank(0, ranks=2, chunks=4)
    (12, 4)
    """
    return chunks * max(1, -(-rows // (ranks * chunks)))


def split_rows(rows: Sequence[LossRow], ranks: int, chunks: int) -> list[Share]:
    """Return the share of every rank. Rows that stay on their rank keep their order."""
    each = rows_per_rank(len(rows), ranks, chunks)
    quotas = [len(rows) // ranks + (rank < len(rows) % ranks) for rank in range(ranks)]
    placed = sorted(((row.source, row) for row in rows if isinstance(row.source, tuple)), key=itemgetter(0))
    own = [[row for (at, _), row in placed if at == rank] for rank in range(ranks)]
    sent = [row for of_rank, quota in zip(own, quotas, strict=True) for row in of_rank[quota:]]
    spare = iter([*sent, *(row for row in rows if isinstance(row.source, Reused))])
    shares = []
    for of_rank, quota in zip(own, quotas, strict=True):
        taken = of_rank[:quota]
        taken += islice(spare, quota - len(taken))
        shares.append(Share(taken, each - len(taken)))
    return shares
