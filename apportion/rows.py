"""Rows of files: JSON lines, CSV with a header, and Parquet. Questions and logs of runs are read by the same readers.

Each row comes with its line in the file, from 1. Parquet has no lines, so there it is the number of the row. All that
is read is bounded, and an error names the file and the line. Files of text may be compressed by gzip.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from apportion.untrusted import LINE_CHARACTERS, TABLE_BYTES, check_file, parse_json, read_lines, shown

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema

Rows = Iterator[tuple[int, dict[str, Any]]]
"""Rows with their line number, or their row number in Parquet."""

SUFFIXES = (".jsonl", ".ndjson", ".csv", ".parquet", ".json", ".eval")
MOST_ROWS = 10**8
"""Most rows of a Parquet file."""

CHUNK = 2**20
"""Number of bytes that are unpacked at a time."""

ROWS_AT_ONCE, WIDE_ROWS_AT_ONCE = 1000, 64
"""Rows of a Parquet file that become objects of Python together: of chosen columns, and of all."""

PACKED_TIMES, PACKED_BYTES = 250, 2**26
"""A .gz file may unpack to PACKED_TIMES its size, and always to PACKED_BYTES."""

UNPACKED_BYTES = 2**31
"""Bytes of Python of the rows of the largest Parquet file that are held together; the file may have a millionth."""

ROW_BYTES, CELL_BYTES = 300, 64
"""Bytes that Python needs for a row, and for a cell in addition to its content."""


class TableError(ValueError):
    """The error for a file that cannot be used: problem, location and remedy in one line."""


def kind_of(path: Path) -> str:
    """Return the suffix of ``path`` that says its format, without ``.gz``; "" if it is another one."""
    name = path.name.lower().removesuffix(".gz")
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")


def row_location(source: Path, line: int) -> str:
    """Return the location of a row, for errors: a line of a text file, a row of any other source."""
    return f"{source} {'line' if kind_of(source) in ('.csv', '.jsonl', '.ndjson') else 'row'} {line}"


class TornError(TableError):
    """The error for a file of text that ends within a row, as if its writer had been stopped."""


@contextmanager
def reading(path: Path, raised: type[ValueError] = TableError) -> Iterator[None]:
    """Raise ``raised`` in place of TableError and of errors while reading a file."""
    try:
        yield
    except TableError as error:
        raise raised(str(error)) from error
    except UnicodeDecodeError as error:
        raise raised(f"a file must be UTF-8, got {path} ({error.reason}); save it as UTF-8") from error
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise raised(f"a file must be readable, got {path} ({reason}); check its path and its content") from error


def open_bytes(path: Path) -> BinaryIO:
    """Open the file for reading, unpacked within bounds. Raise OSError for a pipe, a device or a file of many GiB."""
    check_file(path, TABLE_BYTES)
    file = path.open("rb")
    packed = file.read(2) == b"\x1f\x8b"  # by content, whatever the name says
    file.seek(0)
    if not packed:
        return file
    file.close()
    most = min(TABLE_BYTES, max(PACKED_BYTES, PACKED_TIMES * path.stat().st_size))
    return io.BufferedReader(_Bounded(gzip.open(path), most), CHUNK)


class _Bounded(io.RawIOBase):
    """An unpacked file that ends with an error after ``most`` bytes."""

    def __init__(self, file: Any, most: int) -> None:
        self._file, self._most = file, most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        found: int = self._file.readinto(buffer)
        if self._file.tell() > self._most:
            raise OSError(f"it unpacks to more than {self._most:,} bytes; unpack it first")
        return found

    def close(self) -> None:
        self._file.close()
        super().close()


def text_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that are not blank, each with its number and without a byte order mark.

    Raises OSError for a line of ``LINE_CHARACTERS`` or more.
    """
    with open_bytes(path) as file:
        for line, text in enumerate(iter(partial(file.readline, LINE_CHARACTERS), b""), start=1):
            if len(text) == LINE_CHARACTERS:
                raise OSError(f"it has a line of {LINE_CHARACTERS:,} bytes or more")
            if text := text.removeprefix(b"\xef\xbb\xbf").lstrip():
                yield line, text


def json_row(path: Path, line: int, text: bytes, parse: Callable[[str], Any] = parse_json) -> dict[str, Any]:
    """Return the JSON object in a line. Raise TableError for anything else, TornError for a line that has no end."""
    kind = TableError if text.endswith(b"\n") else TornError
    try:
        row = parse(text.removesuffix(b"\n").decode())
    except UnicodeDecodeError as error:
        raise kind(f"a file must be UTF-8, got other bytes in {path} line {line}; save it as UTF-8") from error
    except ValueError as error:
        raise kind(f"a line must be JSON, got {error} in {path} line {line}; correct or remove it") from error
    if not isinstance(row, dict):
        raise TableError(
            f"a line must be a JSON object, got {shown(row)} in {path} line {line}; write one object a line, or "
            "name one JSON document .json"
        )
    return row


def jsonl_rows(path: Path, parse: Callable[[str], Any] = parse_json) -> Rows:
    """Yield the rows of a file of JSON lines. Raise TableError as above, and OSError as ``text_lines``."""
    return ((line, json_row(path, line, text, parse)) for line, text in text_lines(path))


def csv_rows(path: Path, skipinitialspace: bool = False) -> Rows:
    """Yield the rows of a CSV file with a header. Spaces around column names are removed.

    Raises TableError if the file is not CSV, if two names are equal, and for a row of another length; TornError if
    that is the last, which was not ended.
    """
    # the default is 128 kB, and the limit is the process's
    csv.field_size_limit(max(csv.field_size_limit(), LINE_CHARACTERS))
    with open_bytes(path) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(read_lines(file), skipinitialspace=skipinitialspace, strict=True)
        last = 0
        try:
            names = [name.strip() for name in next(reader, [])]
            if len(set(names)) < len(names):
                raise TableError(
                    f"columns must have different names, got {', '.join(names)[:200]} in {path}; rename one"
                )
            if len(names) == 1 and (";" in names[0] or "\t" in names[0]):
                raise TableError(f"{path} must have commas between its cells, got {names[0]}; save it with commas")
            for cells in filter(None, reader):
                if len(cells) != len(names):
                    torn = len(cells) < len(names) and next(reader, None) is None and not _ends_in_newline(path)
                    raise (TornError if torn else TableError)(
                        f"a row must have {len(names)} cells as the header, got {len(cells)} in {path} line "
                        f"{reader.line_num}; correct or remove that row"
                    )
                last = reader.line_num
                yield last, dict(zip(names, cells, strict=True))
        except csv.Error as wrong:
            torn = "unexpected end" in str(wrong) and reader.line_num < 2 * last  # a quote was opened near the end
            kind = TornError if torn else TableError
            raise kind(f"{path} must be CSV, got {wrong} in line {reader.line_num}; correct that line") from wrong


def _ends_in_newline(path: Path) -> bool:
    """Return whether the last line of an unpacked file ends in a newline; True for a packed file."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(-1, 2)
        return packed or file.read(1) in (b"\n", b"\r")


def table_rows(
    path: Path,
    columns: Sequence[str] | None = None,
    parse: Callable[[str], Any] = parse_json,
    skipinitialspace: bool = False,
) -> Rows:
    """Yield the rows of a table, each with its line or number; errors as in the reader of its kind."""
    kind = kind_of(path)
    if kind == ".csv":
        return csv_rows(path, skipinitialspace)
    return parquet_rows(path, columns) if kind == ".parquet" else jsonl_rows(path, parse)


def schema_of(path: Path) -> Schema:
    """Return the columns of a Parquet file and their types. Raise TableError if it is another file, or too long."""
    check_file(path, TABLE_BYTES)
    with parquet_errors(path):
        from pyarrow.parquet import read_metadata  # noqa: PLC0415 - an optional extra

        metadata = read_metadata(path)
        rows, schema = metadata.num_rows, metadata.schema.to_arrow_schema()
    if rows > MOST_ROWS:
        raise TableError(f"{path} must have at most {MOST_ROWS:,} rows, got {rows:,}; split or check the file")
    if len(set(schema.names)) < len(schema.names):
        raise TableError(f"columns must have different names, got equal ones in {path}; rename one")
    return schema


def parquet_rows(path: Path, columns: Sequence[str] | None = None) -> Rows:
    """Yield the rows of a Parquet file: all cells, or those of ``columns`` that it has.

    Texts of chosen columns that are stored once stay one text. Raises TableError if the file is damaged or too large.
    Rows of chosen columns are held together, so that they must fit into memory too.
    """
    schema = schema_of(path)
    kept = columns and [name for name in dict.fromkeys(columns) if name in schema.names]
    if columns is not None and not kept:  # one row is enough to say which columns there are
        yield 1, dict.fromkeys(schema.names)
        return
    texts = [name for name in kept or () if str(schema.field(name).type) in ("string", "large_string", "binary")]
    found = unpacked = held = 0
    with parquet_errors(path):
        from pyarrow.parquet import ParquetFile  # noqa: PLC0415 - an optional extra

        with ParquetFile(path, read_dictionary=texts, page_checksum_verification=True) as file:
            for batch in file.iter_batches(WIDE_ROWS_AT_ONCE if columns is None else ROWS_AT_ONCE, columns=kept):
                rows, size = _batch_rows(path, batch)
                unpacked, held = unpacked + batch.nbytes, held + size
                if unpacked > TABLE_BYTES:
                    raise TableError(f"{path} must unpack to at most {TABLE_BYTES:,} bytes; split the file")
                if columns is not None and held > UNPACKED_BYTES:
                    raise TableError(
                        f"{path} must need at most {UNPACKED_BYTES:,} bytes when it is unpacked, got more; split the "
                        "file"
                    )
                yield from enumerate(rows, start=found + 1)
                found += batch.num_rows
            declared = file.metadata.num_rows
    if found != declared:
        raise TableError(f"{path} must have the {declared:,} rows that it declares, got {found:,}; check the file")


def _batch_rows(path: Path, batch: RecordBatch) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of a batch, and their bytes. Cells with shared storage stay one object."""
    columns: dict[str, list[Any]] = {}
    size = ROW_BYTES * batch.num_rows
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        size += CELL_BYTES * len(column)
        try:
            if hasattr(column, "dictionary"):
                values = column.dictionary.to_pylist()
                columns[name] = [None if code is None else values[code] for code in column.indices.to_pylist()]
                size += sum(len(cell) for cell in columns[name] if isinstance(cell, (str, bytes)))
            else:
                columns[name] = column.to_pylist()
                size += column.nbytes
        except UnicodeDecodeError as error:
            raise TableError(f"a file must be UTF-8, got {path} ({error.reason}); save it as UTF-8") from error
        except (ValueError, OverflowError) as error:
            raise TableError(
                f"{name} must hold texts or numbers, got {column.type} out of range in {path}; convert it"
            ) from error
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)], size


@contextmanager
def parquet_errors(path: Path) -> Iterator[None]:
    """Raise TableError if pyarrow is missing, or finds no Parquet."""
    try:
        from pyarrow import ArrowException  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise TableError(
            f"reading {path} needs pyarrow, which cannot be imported; pip install 'apportion[report]', or give CSV"
        ) from error
    try:
        yield
    except TableError:
        raise
    except (ArrowException, OSError, ValueError, OverflowError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise TableError(f"{path} must be Parquet, got other or damaged content ({reason}); check the file") from error
