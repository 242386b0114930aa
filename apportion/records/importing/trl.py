"""TRL's completions tables. TRL writes one a logged step, and may write the same rollouts again.

TRL keeps the last generated batch and writes it at each logged step. If ``steps_per_generation`` or ``num_iterations``
is above 1, several steps train on one batch, so several tables hold the same rollouts. Only the first is a generation.
"""

from __future__ import annotations

from pathlib import Path

from apportion.records.importing.parquet import schema_of


def repeats(path: Path, earlier: Path) -> bool:
    """Return whether the tables have the same rows, apart from the step."""
    import pyarrow  # noqa: PLC0415 - an optional extra
    from pyarrow.parquet import ParquetFile  # noqa: PLC0415

    if schema_of(path).names != schema_of(earlier).names:
        return False
    with ParquetFile(path) as one, ParquetFile(earlier) as two:
        if one.metadata.num_rows != two.metadata.num_rows:
            return False
        for columns in (["prompt", "advantage"], [name for name in one.schema_arrow.names if name != "step"]):
            pairs = zip(one.iter_batches(columns=columns), two.iter_batches(columns=columns), strict=True)
            if not all(_same(pyarrow.Table.from_batches([a]), pyarrow.Table.from_batches([b])) for a, b in pairs):
                return False
    return True


def _same(one: object, other: object) -> bool:
    """Return whether two tables have equal cells. NaN is equal to NaN."""
    return one == other or one.to_pydict().__repr__() == other.to_pydict().__repr__()  # type: ignore[attr-defined]
