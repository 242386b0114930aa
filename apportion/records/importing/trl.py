"""TRL's completions tables. TRL writes one a logged step, and may write the same rollouts again.

TRL keeps the last generated batch and writes it at each logged step. If ``steps_per_generation`` or ``num_iterations``
is above 1, several steps train on one batch, so several tables hold the same rollouts. Only the first is a generation.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from apportion.rows import parquet_errors

if TYPE_CHECKING:
    from pyarrow import Table


def repeats(path: Path, earlier: Path) -> int:
    """Return how many rows the tables have if they are the same, apart from the step, else 0.

    Raises TableError if one is damaged.
    """
    with parquet_errors(path):
        import pyarrow  # noqa: PLC0415 - an optional extra
        from pyarrow.parquet import ParquetFile  # noqa: PLC0415

        with ParquetFile(path) as one, ParquetFile(earlier) as two:
            if one.schema_arrow.names != two.schema_arrow.names or one.metadata.num_rows != two.metadata.num_rows:
                return 0
            for columns in (["advantage"], [name for name in one.schema_arrow.names if name != "step"]):
                pairs = zip(one.iter_batches(columns=columns), two.iter_batches(columns=columns), strict=True)
                if not all(_same(pyarrow.Table.from_batches([a]), pyarrow.Table.from_batches([b])) for a, b in pairs):
                    return 0
            return int(one.metadata.num_rows)


def _same(one: Table, other: Table) -> bool:
    """Return whether two tables have equal cells. NaN is equal to NaN."""
    for own, its in zip(one.columns, other.columns, strict=True):
        if own.type != its.type or (str(own.type) != "double" and own != its):
            return False
        if str(own.type) == "double" and not np.array_equal(own.to_numpy(), its.to_numpy(), equal_nan=True):
            return False
    return True
