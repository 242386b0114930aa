"""One file of a run: its columns, its first rows, and all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from apportion.records.importing.files import DOCUMENTS, document_of, rows_of
from apportion.records.importing.names import NUMBERS, ROLLOUTS, TEXTS, USUAL, may_be_number
from apportion.records.importing.unfolding import is_folded, one_filter, rows_in, unfolded
from apportion.records.rollout_log import RecordError
from apportion.rows import SUFFIXES, Rows, kind_of
from apportion.untrusted import shown

HEAD, LATER_HEAD = 100, 32
"""Rows by which the columns of the first file of a run are known, and of each later one."""
NAMED = {*NUMBERS, *TEXTS, *USUAL["split"]}
"""Columns that are looked for in all rows, because the first rows may lack them."""
ANSWERS = {"id", "answer", "votes", "samples", "stopped"}
"""Keys of the answers that apportion vote writes."""


class LateColumns(Exception):
    """Raised by a file that has ``columns`` which its first rows lack. It must be read again."""

    def __init__(self, columns: Sequence[str]) -> None:
        super().__init__()
        self.columns = columns


Head = Sequence[Mapping[str, Any]]
"""The first rows of a file."""


@dataclass(frozen=True)
class Source:
    """One file: its columns, ``numeric`` ones of them, its first rows, and a function that returns all.

    Rows of a ``folded`` file held several rollouts each. ``said`` has what is said of rows that were left out.
    """

    path: Path
    columns: list[str]
    numeric: list[str]
    head: list[dict[str, Any]]
    rows: Callable[[], Rows]
    said: dict[str, None]
    folded: bool = False

    @property
    def kind(self) -> str:
        return kind_of(self.path)

    @property
    def listed(self) -> str:
        """The columns, as errors name them."""
        return ", ".join(map(str, self.columns[:20])) + ", ..." * (len(self.columns) > 20)

    @classmethod
    def of(cls, path: Path, renamed: Mapping[str, str], rows: int) -> Source:
        """Return the file at ``path``, known by its first ``rows``. Rows that hold several rollouts are unfolded."""
        kind = kind_of(path)
        if not kind:
            raise RecordError(f"a run must end in {', '.join(SUFFIXES)}, got {shown(path.name)}; convert or rename it")
        said: dict[str, None] = {}
        slow = partial(one_filter, partial(rows_of, path, said), said)
        if kind in DOCUMENTS:  # which are parsed once
            slow = partial(rows_in, document_of(path), renamed, path)
        head = [row for _, row in islice(slow(), rows)]
        if not head and not said:
            raise RecordError(f"a run must have at least one row, got none in {path}; check the file or remove it")
        if head and head[0].keys() >= ANSWERS:
            raise RecordError(
                f"{path} has the answers of a vote and not its rollouts; restore the file of its samples beside it, or "
                "name another file"
            )
        if sum(is_folded(row, renamed) for row in head) > len(head) / 2:

            def unfold() -> Rows:
                return unfolded(slow(), renamed, path)

            first = [row for _, row in islice(unfold(), rows)]
            return cls(path, *_columns(first), first, unfold, said, folded=True)
        return cls(path, *_columns(head), head, slow, said)

    def read(self) -> Rows:
        """Yield all rows. Raise RecordError, and LateColumns for a row with columns that were not known."""
        late = NAMED - {*self.columns}
        for number, row in self.rows():
            if not late.isdisjoint(row):
                raise LateColumns(sorted(late & row.keys()))
            yield number, row

    def list_lengths(self, read: Collection[str]) -> dict[str, int]:
        """Return the usual length of lists of numbers, or of rollouts, in columns that are not ``read``."""
        found = {}
        for name in [name for name in self.columns if name not in read]:
            texts = name.lower() in ROLLOUTS
            cells = [row.get(name) for row in self.head]
            lengths = [len(cell) for cell in cells if isinstance(cell, list) and _is_listed(cell, texts)]
            if lengths and len(lengths) >= len(self.head) / 2:
                found[name] = int(np.median(lengths))
        return found


def _columns(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Return the columns of ``rows``, and those of them that hold numbers or nothing."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return columns, [name for name in columns if all(may_be_number(row.get(name)) for row in rows)]


def _is_listed(cell: list[Any], texts: bool) -> bool:
    """Return whether a list has several numbers, or several of anything if it may hold ``texts``."""
    return len(cell) > 1 and (texts or all(type(each) in (int, float, bool) for each in cell))
