"""Tables of rollouts as JSON lines: one object a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apportion.records.importing.arrow import block_of
from apportion.records.importing.blocks import Block, Unsure, exact_blocks
from apportion.records.importing.files import Piece, chunks, json_rows
from apportion.records.importing.layout import NUMBERS, TEXTS, Layout

if TYPE_CHECKING:
    from pyarrow import Schema, Table


NAMED = {*NUMBERS, *TEXTS}
"""Columns that are looked for in all rows, because the first rows may lack them."""


def blocks_of_jsonl(path: Path, layout: Layout, columns: Sequence[str]) -> Iterator[Block]:
    """Yield the rows of the file. Raise RecordError, which names the line, for what cannot be read.

    Raises Unsure if a column of a role's name comes that is not among the known ``columns``.
    """
    schema = None
    for piece in chunks(path):
        if not piece.line - 1:
            schema = _schema(layout, next((row for _, row in json_rows(path, piece)), {}))
        table = None if schema is None else _table(piece, schema, "infer")
        if table is None:
            late = [name for name in NAMED - set(columns) if f'"{name}"'.encode() in piece.content]
            table = None if schema is None else _table(piece, schema, "ignore")
        else:
            late = [name for name in table.column_names if name in NAMED and name not in columns]
        if late:
            raise Unsure(late)
        block = None if table is None else block_of(table, layout)
        if block is not None:
            yield block
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


def _table(piece: Piece, schema: Schema, others: str) -> Table | None:
    """Return whole lines as a table, or None if any of them may be wrong. ``others`` says what becomes of others."""
    from pyarrow import ArrowException, BufferReader, json  # noqa: PLC0415 - an optional extra

    options = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=others)
    try:
        if not piece.content.isascii():
            piece.content.decode()
        table = json.read_json(BufferReader(piece.content), json.ReadOptions(block_size=2**21), options)
    except (ArrowException, UnicodeDecodeError):
        return None
    whole = table.num_rows == piece.lines or table.num_rows == piece.rows()  # the first is quicker to count
    return table if whole else None
