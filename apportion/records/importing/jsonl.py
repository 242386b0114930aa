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
    from pyarrow import Schema


LATE = tuple(f'"{name}"'.encode() for name in (*NUMBERS, *TEXTS))
"""Keys that are looked for in all rows, because the first rows may lack them."""


def blocks_of_jsonl(path: Path, layout: Layout, columns: Sequence[str]) -> Iterator[Block]:
    """Yield the rows of the file. Raise RecordError, which names the line, for what cannot be read.

    Raises Unsure if a column of a usual name comes that is not among the known ``columns``.
    """
    schema = None
    wanted = [name for name in LATE if name[1:-1].decode() not in columns]
    for piece in chunks(path):
        if late := [name[1:-1].decode() for name in wanted if name in piece.content]:
            raise Unsure(late)
        if not piece.line - 1:
            schema = _schema(layout, next((row for _, row in json_rows(path, piece)), {}))
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
