"""Read columns of a file of prompts (CSV with a header, JSON lines or Parquet), and write counts as CSV."""

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from apportion.types import Counts, Floats
from apportion.untrusted import LINE_CHARACTERS, TABLE_BYTES, check_file, parse_json, parse_number, read_lines, shown

Rows = Iterator[tuple[int, dict[str, Any]]]
"""Rows, each with its line in the file, from 1. Parquet has no lines, so there it is the number of the row."""


MOST_ROWS = 10**8
"""Rows of the largest Parquet file."""

ROWS_AT_ONCE = 1000
"""Rows of a Parquet file that are unpacked together."""

UNPACKED_BYTES = 2**31
"""Unpacked bytes of the largest Parquet file, whose own size may be a millionth of that."""

ROW_BYTES, CELL_BYTES = 300, 64
"""Bytes that Python needs for a row, and for a cell beside its content."""


class TableError(ValueError):
    """The error for a file that cannot be used: problem, location and remedy in one line."""


@dataclass(frozen=True)
class Table:
    """Columns of one file: the ``cells`` [P] of each column by its name, and the line of each row [P]."""

    path: Path
    lines: tuple[int, ...]
    cells: dict[str, tuple[Any, ...]]

    def __len__(self) -> int:
        return len(self.lines)

    def numbers(self, column: str) -> Floats:
        """Return the column as finite floats [P]. Raise TableError, which names the line, for any other cell."""
        numbers = np.full(len(self), np.nan)
        for row, (line, cell) in enumerate(zip(self.lines, self.cells[column], strict=True)):
            if isinstance(cell, (str, int, float, Decimal)) and not isinstance(cell, bool):
                with suppress(ValueError, OverflowError):
                    numbers[row] = parse_number(cell) if isinstance(cell, str) else float(cell)
            if not np.isfinite(numbers[row]):
                got, place = "nothing" if cell in (None, "") else shown(cell), row_location(self.path, line)
                raise TableError(f"{column} must be a finite number, got {got} in {place}; correct or remove it")
        return numbers


def read_columns(path: Path, wanted: Sequence[str], optional: Sequence[str] = ()) -> Table:
    """Return the ``wanted`` columns of the file at ``path``, and those of ``optional`` that it has; P is at least 1.

    The suffix gives the format: .csv, .jsonl or .parquet (which needs pyarrow). Blank lines are skipped.

    Raises TableError for a file that is missing, empty, not in the format of its suffix, or without a wanted column.
    """
    return make_table(path, list(read_rows(path, [*wanted, *optional])), wanted, optional)


def row_location(source: Path, line: int) -> str:
    """Return the location of a row, for errors: a line of a text file, a row of any other source."""
    return f"{source} {'line' if source.suffix.lower() in ('.csv', '.jsonl') else 'row'} {line}"


def read_rows(path: Path, columns: Sequence[str]) -> Rows:
    """Yield the rows of the file at ``path``. From Parquet only those of ``columns`` that it has are read.

    Raises TableError as ``read_columns`` does, when the first row is taken.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise TableError(f"a table must end in {', '.join(READERS)}, got {shown(path.name)}; convert or rename it")
    try:
        check_file(path, TABLE_BYTES)
        yield from reader(path, columns)
    except OSError as error:
        raise TableError(f"a table must be readable, got {path} ({error.strerror or error}); check the path") from error
    except UnicodeDecodeError as error:
        raise TableError(f"a table must be UTF-8, got {path} ({error.reason}); save it as UTF-8") from error


def make_table(
    path: Path, rows: Sequence[tuple[int, dict[str, Any]]], wanted: Sequence[str], optional: Sequence[str] = ()
) -> Table:
    """Return the ``wanted`` columns of ``rows`` [P], and those of ``optional`` that they have; errors name ``path``."""
    if not rows:
        raise TableError(f"a table must have at least one row, got none in {path}; give one row a prompt")
    found = list(dict.fromkeys(column for _, row in rows for column in row))
    for column in wanted:
        if column not in found:
            raise TableError(f"{path} must have a column {column}, got {', '.join(found)}; add or rename one")
    kept = [column for column in found if column in wanted or column in optional]
    return Table(
        path, tuple(line for line, _ in rows), {column: tuple(row.get(column) for _, row in rows) for column in kept}
    )


def write_counts(path: Path, counts: Counts, ids: Sequence[Any] | None = None) -> None:
    """Write ``counts`` [P] as CSV, with ``ids`` [P] or prompt numbers from 0. Raise TableError if that fails."""
    if path.suffix.lower() != ".csv":
        raise TableError(f"counts are written as .csv, got {str(path)!r}; rename it")
    keys = range(len(counts)) if ids is None else ids
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["prompt" if ids is None else "id", "count"])
            writer.writerows(zip(map(_no_formula, keys), counts.tolist(), strict=True))
    except OSError as error:
        raise TableError(f"counts cannot be written to {path} ({error.strerror or error}); change the path") from error


def _no_formula(cell: Any) -> Any:
    """Return ``cell`` with an apostrophe before what a spreadsheet would run as a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


def csv_header(path: Path, cells: Sequence[str], error: type[ValueError]) -> list[str]:
    """Return the names of the columns, without spaces around them. Raise ``error`` if two are equal."""
    header = [name.strip() for name in cells]
    if len(set(header)) < len(header):
        raise error(f"columns must have different names, got {', '.join(header)[:200]} in {path}; rename one")
    return header


def csv_rows(path: Path, file: TextIO, error: type[ValueError], skipinitialspace: bool = False) -> Rows:
    """Yield the rows of an open CSV ``file`` with a header, each with its line.

    Raises ``error``, which names ``path`` and the line, if the file is not CSV, and for a row of another length.
    """
    csv.field_size_limit(max(csv.field_size_limit(), LINE_CHARACTERS))  # 128 kB by default, for the whole process
    reader = csv.reader(read_lines(file), skipinitialspace=skipinitialspace, strict=True)
    try:
        header = csv_header(path, next(reader, []), error)
        for cells in reader:
            if len(cells) not in (0, len(header)):
                raise error(
                    f"a row must have {len(header)} cells as the header, got {len(cells)} in {path} line "
                    f"{reader.line_num}; correct or remove that row"
                )
            if cells:
                yield reader.line_num, dict(zip(header, cells, strict=True))
    except csv.Error as wrong:
        raise error(f"{path} must be CSV, got {wrong} in line {reader.line_num}; correct that line") from wrong


def _csv(path: Path, _: Sequence[str]) -> Rows:
    with path.open(encoding="utf-8-sig", newline="") as file:
        yield from csv_rows(path, file, TableError, skipinitialspace=True)


def _jsonl(path: Path, _: Sequence[str]) -> Rows:
    with path.open(encoding="utf-8-sig") as file:
        for line, text in enumerate(read_lines(file), start=1):
            if not text.strip():
                continue
            try:
                row = parse_json(text)
            except ValueError as error:
                raise TableError(f"{path} must be JSON lines, got {error} in line {line}; correct it") from error
            if not isinstance(row, dict):
                raise TableError(
                    f"a row must be a JSON object, got {shown(row)} in {path} line {line}; "
                    'write it as {"column": value}'
                )
            yield line, row


def _parquet(path: Path, columns: Sequence[str]) -> Rows:
    try:
        from pyarrow import ArrowException  # noqa: PLC0415 - an optional extra
        from pyarrow.parquet import ParquetFile, read_metadata  # noqa: PLC0415
    except ImportError as error:
        raise TableError(
            f"reading {path} needs pyarrow, which cannot be imported; pip install 'apportion[report]', or give CSV"
        ) from error
    try:
        metadata = read_metadata(path)
        rows, schema = metadata.num_rows, metadata.schema.to_arrow_schema()
        if rows > MOST_ROWS:
            raise TableError(f"{path} must have at most {MOST_ROWS:,} rows, got {rows:,}; split or check the file")
        if len(set(schema.names)) < len(schema.names):
            raise TableError(f"columns must have different names, got equal ones in {path}; rename one")
        kept = [column for column in columns if column in schema.names]
        if not kept and rows:  # the first row is enough to say which columns there are
            yield 1, dict.fromkeys(schema.names)
            return
        texts = [column for column in kept if str(schema.field(column).type) in ("string", "binary")]
        with ParquetFile(path, metadata=metadata, read_dictionary=texts, page_checksum_verification=True) as file:
            batches = file.iter_batches(ROWS_AT_ONCE, columns=kept)
            yield from enumerate(chain.from_iterable(_unpack(path, batches)), start=1)
    except ArrowException as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise TableError(f"{path} must be Parquet, got another format ({reason}); check the file") from error


def _unpack(path: Path, batches: Iterable[Any]) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each of a Parquet file's ``batches``. Raise TableError if they take too much memory."""
    unpacked = 0
    for batch in batches:
        columns = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                columns[name], size = _cells(column)
            except (ValueError, OverflowError) as error:
                raise TableError(
                    f"{name} must hold texts or numbers, got {column.type} out of range in {path}; convert it"
                ) from error
            unpacked += size + CELL_BYTES * len(column)
        unpacked += ROW_BYTES * batch.num_rows
        if unpacked > UNPACKED_BYTES:
            raise TableError(
                f"{path} must need at most {UNPACKED_BYTES:,} bytes when it is unpacked, got more; split the file"
            )
        yield [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def _cells(column: Any) -> tuple[list[Any], int]:
    """Return the cells of an Arrow array, and their bytes. Cells that are stored once stay one object."""
    if not hasattr(column, "dictionary"):
        return column.to_pylist(), column.nbytes
    values = column.dictionary.to_pylist()
    cells = [None if index is None else values[index] for index in column.indices.to_pylist()]
    return cells, sum(map(len, filter(None, cells)))


READERS: dict[str, Callable[[Path, Sequence[str]], Rows]] = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
"""The reader of each format, by suffix."""
