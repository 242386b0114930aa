"""Read columns of a file of prompts: CSV with a header, JSON lines or Parquet."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from apportion.rows import Rows, TableError, reading, row_location, table_rows
from apportion.types import Floats
from apportion.untrusted import parse_number, shown

SUFFIXES = (".csv", ".jsonl", ".parquet")


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
    rows = list(read_rows(path, [*wanted, *optional]))
    found = columns_of(path, rows)
    for column in wanted:
        if column not in found:
            raise TableError(f"{path} must have a column {column}, got {', '.join(found)}; add or rename one")
    kept = [column for column in found if column in wanted or column in optional]
    cells = {column: tuple(row.get(column) for _, row in rows) for column in kept}
    return Table(path, tuple(line for line, _ in rows), cells)


def read_rows(path: Path, columns: Sequence[str]) -> Rows:
    """Yield the rows of the file at ``path``. From Parquet only those of ``columns`` that it has are read.

    Raises TableError as ``read_columns`` does, when the first row is taken.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise TableError(f"a table must end in {', '.join(SUFFIXES)}, got {shown(path.name)}; convert or rename it")
    with reading(path):
        yield from table_rows(path, columns, skipinitialspace=True)


def columns_of(path: Path, rows: Sequence[tuple[int, dict[str, Any]]]) -> list[str]:
    """Return the columns that any of ``rows`` has. Raise TableError, which names ``path``, if there is no row."""
    if not rows:
        raise TableError(f"a table must have at least one row, got none in {path}; give one row a prompt")
    return list(dict.fromkeys(column for _, row in rows for column in row))
