"""Tables of rollouts as Parquet. Only the columns that are needed are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apportion.records.importing.arrow import block_of
from apportion.records.importing.blocks import Block, exact_block
from apportion.records.importing.layout import Layout
from apportion.records.rollout_log import RecordError
from apportion.tables import MOST_ROWS, UNPACKED_BYTES
from apportion.untrusted import TABLE_BYTES, check_file

if TYPE_CHECKING:
    from pyarrow import Schema

ROWS, ROWS_AT_ONCE = 2**16, 64
"""Rows that are unpacked together: of the columns that are read, and of all."""


def schema_of(path: Path) -> Schema:
    """Return the columns of the file and their types. Raise RecordError if it is not Parquet, or has no rows."""
    check_file(path, TABLE_BYTES)
    with parquet_errors(path):
        from pyarrow.parquet import read_metadata  # noqa: PLC0415 - an optional extra

        metadata = read_metadata(path)
        rows, schema = metadata.num_rows, metadata.schema.to_arrow_schema()
    if not 0 < rows <= MOST_ROWS:
        raise RecordError(f"a run must have 1 to {MOST_ROWS:,} rows, got {rows:,} in {path}; split or check the file")
    if len(set(schema.names)) < len(schema.names):
        raise RecordError(f"columns must have different names, got equal ones in {path}; rename one")
    return schema


def numeric_columns(schema: Schema) -> list[str]:
    """Return the columns of numbers, those of booleans and those without any value."""
    from pyarrow import types  # noqa: PLC0415 - an optional extra

    kinds = (types.is_integer, types.is_floating, types.is_boolean, types.is_null)
    return [field.name for field in schema if any(is_kind(field.type) for is_kind in kinds)]


def blocks_of_parquet(path: Path, layout: Layout) -> Iterator[Block]:
    """Yield the rows of the file. Raise RecordError, which names the row, for what cannot be read."""
    schema = schema_of(path)
    columns = list(dict.fromkeys([*layout.numbers.values(), *layout.texts.values()]))
    texts = [name for name in layout.texts.values() if str(schema.field(name).type) in ("string", "large_string")]
    row, unpacked = 1, 0
    with parquet_errors(path):
        import pyarrow  # noqa: PLC0415 - an optional extra
        from pyarrow.parquet import ParquetFile  # noqa: PLC0415

        with ParquetFile(path, read_dictionary=texts, page_checksum_verification=True) as file:
            expected = file.metadata.num_rows
            for batch in file.iter_batches(ROWS, columns=columns):
                unpacked += batch.nbytes
                if unpacked > UNPACKED_BYTES * 8:
                    raise RecordError(f"{path} must unpack to at most {UNPACKED_BYTES * 8:,} bytes; split the file")
                table = pyarrow.Table.from_batches([batch])
                block = block_of(table, layout)
                if block is None:
                    cells: list[dict[str, Any]] = table.to_pylist()
                    block = exact_block(str(path), "row", layout, list(enumerate(cells, start=row)))
                row += block.rows
                yield block
    if row - 1 != expected:
        raise RecordError(f"{path} must have the {expected:,} rows that it declares, got {row - 1:,}; check the file")


def parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield all cells of the file row by row, each with its number. Raise RecordError as above."""
    schema_of(path)
    with parquet_errors(path):
        from pyarrow.parquet import ParquetFile  # noqa: PLC0415 - an optional extra

        with ParquetFile(path, page_checksum_verification=True) as file:
            rows = (row for batch in file.iter_batches(ROWS_AT_ONCE) for row in batch.to_pylist())
            yield from enumerate(rows, start=1)


@contextmanager
def parquet_errors(path: Path) -> Iterator[None]:
    """Raise RecordError if pyarrow is missing, or finds no Parquet."""
    try:
        from pyarrow import ArrowException  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise RecordError(
            f"reading {path} needs pyarrow, which cannot be imported; pip install 'apportion[report]'"
        ) from error
    try:
        yield
    except (ArrowException, OSError, UnicodeDecodeError, ValueError, OverflowError) as error:
        if isinstance(error, RecordError):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RecordError(f"{path} must be Parquet, got other or damaged content ({reason}); check the file") from error
