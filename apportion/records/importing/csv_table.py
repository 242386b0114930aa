"""Tables of rollouts as CSV with a header."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from apportion.records.importing.arrow import block_of
from apportion.records.importing.blocks import WORDS, Block, Unsure
from apportion.records.importing.files import csv_rows, open_bytes
from apportion.records.importing.layout import Layout
from apportion.records.rollout_log import RecordError
from apportion.tables import csv_header


def blocks_of_csv(path: Path, layout: Layout) -> Iterator[Block]:
    """Yield the rows as pyarrow reads them. Raise Unsure if any of them may be wrong, also after some blocks."""
    try:
        import pyarrow  # noqa: PLC0415 - an optional extra
        from pyarrow import csv as reader  # noqa: PLC0415
    except ImportError as error:
        raise Unsure from error
    first = next(csv_rows(path))[1]
    types = {
        column: pyarrow.bool_() if first[column].strip().lower() in WORDS else pyarrow.float64()
        for column in layout.numbers.values()
    } | dict.fromkeys(layout.texts.values(), pyarrow.string())
    with open_bytes(path) as raw:
        names, skipped = _header(path)
        file = _Watched(raw)
        try:
            batches = reader.open_csv(
                pyarrow.PythonFile(file),
                reader.ReadOptions(block_size=2**23, column_names=names, skip_rows=skipped),
                reader.ParseOptions(newlines_in_values=True),
                reader.ConvertOptions(
                    column_types=types, include_columns=list(types), null_values=[""], strings_can_be_null=False
                ),
            )
            for batch in batches:
                block = block_of(pyarrow.Table.from_batches([batch]), layout)
                if block is None:
                    raise Unsure
                yield block
        except (pyarrow.ArrowException, UnicodeDecodeError) as error:
            raise Unsure from error
        if file.quotes % 2:
            raise Unsure


def _header(path: Path) -> tuple[list[str], int]:
    """Return the names of the columns, and how many lines they take."""
    with open_bytes(path) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        return csv_header(path, next(reader), RecordError), reader.line_num


class _Watched(io.RawIOBase):
    """A file whose quotes are counted, and whose text must be UTF-8."""

    def __init__(self, file: Any) -> None:
        self._file, self.quotes = file, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        found: bytes = self._file.read(size)
        self.quotes += found.count(b'"')
        if not found.isascii() or self._decoder.getstate()[0]:
            self._decoder.decode(found, final=not found)
        return found
