"""Blocks of rows as pyarrow reads them. It is quick, but says little of what is wrong, and reads some cells otherwise.

A block in doubt is read again cell by cell. CSV cannot be cut into blocks before it is read, so that there Unsure asks
for the whole file.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from apportion.records.importing.blocks import WORDS, Block, Unsure, exact_block, exact_blocks
from apportion.records.importing.files import parsed
from apportion.records.importing.layout import NUMBERS, TEXTS, Layout
from apportion.rows import batch_rows, chunks, csv_cells, json_rows, open_bytes, parquet_batches
from apportion.types import Counts, Floats

if TYPE_CHECKING:
    from pyarrow import ChunkedArray, Schema, Table

NAMED = {*NUMBERS, *TEXTS}
"""Columns that are looked for in all rows, because the first rows may lack them."""

ROWS = 2**16
"""Rows of a block of Parquet."""

_FULL = re.compile(rb"\S[^\n]*")


def blocks_of_parquet(path: Path, layout: Layout) -> Iterator[Block]:
    """Yield the rows of the file. Raise ValueError, which names the row, for what cannot be read."""
    row = 1
    for batch in parquet_batches(path, ROWS, [*layout.numbers.values(), *layout.texts.values()]):
        import pyarrow  # noqa: PLC0415 - an optional extra

        block = _block(pyarrow.Table.from_batches([batch]), layout)
        yield block or exact_block(path, layout, list(enumerate(batch_rows(path, batch)[0], start=row)))
        row += batch.num_rows


def blocks_of_jsonl(path: Path, layout: Layout, columns: Sequence[str]) -> Iterator[Block]:
    """Yield the rows of the file. Raise ValueError, which names the line, for what cannot be read.

    Raises Unsure if a column of a role's name comes that is not among the known ``columns``.
    """
    schema, late = None, NAMED - set(columns)
    for line, content in chunks(path):
        if line == 1:
            schema = _schema(layout, next((row for _, row in json_rows(path, line, content, parsed)), {}))
        table = None if schema is None else _table(content, schema, "infer")
        if table is not None:
            came = late & set(table.column_names)
        else:  # other columns may hold what pyarrow cannot read
            came = {name for name in late if f'"{name}"'.encode() in content}
            table = None if schema is None else _table(content, schema, "ignore")
        if came:
            raise Unsure(sorted(came))
        block = None if table is None else _block(table, layout)
        yield from exact_blocks(path, layout, json_rows(path, line, content, parsed)) if block is None else [block]


def blocks_of_csv(path: Path, layout: Layout) -> Iterator[Block]:
    """Yield the rows as pyarrow reads them. Raise Unsure if any of them may be wrong, also after some blocks."""
    try:
        import pyarrow  # noqa: PLC0415 - an optional extra
        from pyarrow import csv  # noqa: PLC0415
    except ImportError as error:
        raise Unsure from error
    (lines, names), (_, cells) = islice(csv_cells(path), 2)
    first = dict(zip(names, cells, strict=True))
    is_word = {column: first[column].strip().lower() in WORDS for column in layout.numbers.values()}
    types = {column: pyarrow.bool_() if word else pyarrow.float64() for column, word in is_word.items()}
    types |= dict.fromkeys(layout.texts.values(), pyarrow.string())
    with open_bytes(path) as raw:
        file = _Watched(raw)
        try:
            for batch in csv.open_csv(
                pyarrow.PythonFile(file, mode="r"),
                csv.ReadOptions(block_size=2**23, column_names=names, skip_rows=lines),
                csv.ParseOptions(newlines_in_values=True),
                csv.ConvertOptions(
                    column_types=types, include_columns=list(types), null_values=[""], strings_can_be_null=False
                ),
            ):
                block = _block(pyarrow.Table.from_batches([batch]), layout)
                if block is None:
                    raise Unsure
                yield block
        except (pyarrow.ArrowException, UnicodeDecodeError) as error:
            raise Unsure from error
        if file.quotes % 2:
            raise Unsure


def numeric_columns(schema: Schema) -> list[str]:
    """Return the columns of numbers, those of booleans and those without any value."""
    from pyarrow import types  # noqa: PLC0415 - an optional extra

    kinds = (types.is_integer, types.is_floating, types.is_boolean, types.is_null)
    return [field.name for field in schema if any(is_kind(field.type) for is_kind in kinds)]


class _Watched:
    """A file whose quotes are counted, and whose text must be UTF-8."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.quotes = file, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def read(self, size: int) -> bytes:
        found = self._file.read(size)
        self.quotes += found.count(b'"')
        if not found.isascii() or self._decoder.getstate()[0]:
            self._decoder.decode(found, final=not found)
        return found


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


def _table(content: bytes, schema: Schema, others: str) -> Table | None:
    """Return whole lines as a table, or None if any of them may be wrong. ``others`` says what becomes of others."""
    from pyarrow import ArrowException, BufferReader, json  # noqa: PLC0415 - an optional extra

    options = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=others)
    try:
        if not content.isascii():
            content.decode()
        table = json.read_json(BufferReader(content), json.ReadOptions(block_size=2**21), options)
    except (ArrowException, UnicodeDecodeError):
        return None
    lines = content.count(b"\n") + (not content.endswith(b"\n"))
    if table.num_rows != lines:  # some are blank, or one has two objects
        lines = sum(1 for _ in _FULL.finditer(content))
    return table if table.num_rows == lines else None


def _block(table: Table, layout: Layout) -> Block | None:
    """Return the rows of ``table`` as a block, or None if a cell may be wrong or is of another type than expected."""
    numbers, texts = {}, {}
    for role, column in layout.numbers.items():
        values = _numbers(table[column], layout.has_nan(role))
        if values is None or layout.out_of_limits(role, values).any():
            return None
        numbers[role] = values
    for role, column in layout.texts.items():
        coded = _codes(table[column])
        if coded is None:
            return None
        texts[role] = coded
    block = Block(table.num_rows, numbers, texts)
    return block if block.problem(layout) is None else None


def _numbers(column: ChunkedArray, nan_is_none: bool) -> Floats | None:
    """Return a column of numbers as floats, nan for null; None for another type, and for nan among the values."""
    from pyarrow import types  # noqa: PLC0415 - an optional extra

    kind = column.type
    if types.is_boolean(kind):
        column = column.cast("int8")
    elif not (types.is_integer(kind) or types.is_floating(kind) or types.is_null(kind)):
        return None
    found: Any = np.asarray(column.cast("float64", safe=False).fill_null(np.nan).to_numpy())
    return None if not nan_is_none and np.isnan(found).sum() != column.null_count else found


def _codes(column: ChunkedArray) -> tuple[list[str], Counts] | None:
    """Return the distinct texts of a column and the code of each row, -1 for null; None for another type."""
    from pyarrow import ArrowException, types  # noqa: PLC0415 - an optional extra

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_integer(kind) or types.is_null(kind):
        column = column.cast("string")
    elif not (types.is_string(kind) or types.is_large_string(kind)):
        return None
    try:
        coded = column.dictionary_encode().unify_dictionaries().combine_chunks()
        coded = coded.chunk(0) if hasattr(coded, "chunk") else coded
        return coded.dictionary.to_pylist(), np.asarray(coded.indices.fill_null(-1)).astype(np.int64)
    except (ArrowException, UnicodeDecodeError):
        return None
