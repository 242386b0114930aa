"""Tables of rollouts as JSON lines: one object a row."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apportion.records.importing.arrow import block_of
from apportion.records.importing.blocks import Block, exact_blocks
from apportion.records.importing.files import Piece, chunks, json_rows
from apportion.records.importing.layout import Layout
from apportion.records.rollout_log import RecordError

if TYPE_CHECKING:
    from pyarrow import Schema


def first_row(path: Path) -> dict[str, Any]:
    """Return the first row of the file. Raise RecordError if it has none."""
    for piece in chunks(path, 2**12):
        for _, row in islice(json_rows(path, piece), 1):
            return row
    raise RecordError(f"a run must have at least one row, got none in {path}; check the file")


def blocks_of_jsonl(path: Path, layout: Layout) -> Iterator[Block]:
    """Yield the rows of the file. Raise RecordError, which names the line, for what cannot be read."""
    schema = _schema(layout, first_row(path))
    for piece in chunks(path):
        fast = None if schema is None else _fast(piece, layout, schema)
        if fast is not None:
            yield fast
        else:
            yield from exact_blocks(str(path), "line", layout, json_rows(path, piece))


def _schema(layout: Layout, row: dict[str, Any]) -> Schema | None:
    """Return the types of the columns, by the first row; None if pyarrow is missing or cannot read such cells."""
    try:
        import pyarrow  # noqa: PLC0415 - an optional extra
    except ImportError:
        return None
    fields = {}
    for column in layout.numbers.values():
        fields[column] = pyarrow.bool_() if isinstance(row.get(column), bool) else pyarrow.float64()
    for column in layout.texts.values():
        cell = row.get(column)
        if cell is not None and type(cell) not in (str, int):
            return None
        fields[column] = pyarrow.int64() if isinstance(cell, int) else pyarrow.string()
    return pyarrow.schema(list(fields.items()))


def _fast(piece: Piece, layout: Layout, schema: Schema) -> Block | None:
    """Return whole lines as a block, or None if any of them may be wrong."""
    from pyarrow import ArrowException, BufferReader, json  # noqa: PLC0415 - an optional extra

    options = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        if not piece.content.isascii():
            piece.content.decode()
        table = json.read_json(BufferReader(piece.content), json.ReadOptions(block_size=2**21), options)
    except (ArrowException, UnicodeDecodeError):
        return None
    whole = table.num_rows == piece.lines or table.num_rows == piece.rows()  # the first is quicker to count
    return block_of(table, layout) if whole else None
