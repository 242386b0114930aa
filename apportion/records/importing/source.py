"""One file of a run: its columns, its first rows, and all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
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
"""Number of first rows that show the columns of a run's first file (HEAD), and of each later file."""
NAMED = {*NUMBERS, *TEXTS, *USUAL["split"]}
"""Columns that are searched in all rows, because the first rows may lack them."""
ANSWERS = {"id", "answer", "votes", "samples", "stopped"}
"""Keys in the answers that apportion vote writes."""


class LateColumns(Exception):
    """Raised for a file with ``columns`` that its first rows lack. The file must be read again with them."""

    def __init__(self, columns: Sequence[str]) -> None:
        super().__init__()
        self.columns = columns


Head = Sequence[Mapping[str, Any]]
"""The first rows of a file."""


@dataclass(frozen=True)
class Source:
    """One file: its columns, its first rows, and a function that returns all.

    Rows of a ``folded`` file held several rollouts each. ``said`` are the doubts about rows that were left out.
    """

    path: Path
    columns: list[str]
    head: list[dict[str, Any]]
    rows: Callable[[], Rows]
    said: dict[str, None]
    folded: bool = False

    @cached_property
    def numeric(self) -> list[str]:
        """The columns that hold numbers or nothing."""
        return [name for name in self.columns if all(may_be_number(row.get(name)) for row in self.head)]

    @property
    def listed(self) -> str:
        """The column names as an error lists them."""
        return ", ".join(map(str, self.columns[:20])) + ", ..." * (len(self.columns) > 20)

    @classmethod
    def of(cls, path: Path, renamed: Mapping[str, str], rows: int) -> Source:
        """Return the file at ``path``, known by its first ``rows``. Rows that hold several rollouts are unfolded."""
        kind = kind_of(path)
        if not kind:
            raise RecordError(f"a run must end in {', '.join(SUFFIXES)}, got {shown(path.name)}; convert or rename it")
        said: dict[str, None] = {}
        slow = partial(one_filter, partial(rows_of, path, said), said)
        if kind in DOCUMENTS:  # a document is parsed once
            slow = partial(rows_in, document_of(path), renamed, path)
        head = [row for _, row in islice(slow(), rows)]
        if not head and not said:
            raise RecordError(f"a run must have at least one row, got none in {path}; check the file or remove it")
        if head and head[0].keys() >= ANSWERS:
            raise RecordError(
                f"{path} must be the log of a run, got the answers of a vote; name a log, or give the answers, with "
                "the file of their samples beside it, to evaluate, forecast, report or revote"
            )
        if folded := sum(is_folded(row, renamed) for row in head) > len(head) / 2:
            slow = partial(unfolded, slow, renamed, path)
            head = [row for _, row in islice(slow(), rows)]
        return cls(path, list(dict.fromkeys(key for row in head for key in row)), head, slow, said, folded)

    def read(self) -> Rows:
        """Yield all rows. Raise RecordError, or LateColumns for a row with columns that the first rows lack."""
        late = NAMED - {*self.columns}
        for number, row in self.rows():
            if not late.isdisjoint(row):
                raise LateColumns(sorted(late & row.keys()))
            yield number, row

    def list_lengths(self, read: Collection[str]) -> dict[str, int]:
        """Return the usual length of lists of numbers, or of rollouts, in columns that are not ``read``."""
        found = {}
        for name in self.columns:
            cells = [row.get(name) for row in self.head if name not in read]
            lists = [cell for cell in cells if isinstance(cell, list) and len(cell) > 1]
            if name.lower() not in ROLLOUTS:
                lists = [cell for cell in lists if all(type(each) in (int, float, bool) for each in cell)]
            if lists and len(lists) >= len(self.head) / 2:
                found[name] = int(np.median([*map(len, lists)]))
        return found
