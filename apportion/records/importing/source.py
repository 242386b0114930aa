"""One file of a run: its columns, its first rows, and the quickest reader that reads it rightly."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from apportion.records.importing.blocks import Block, coded, exact_blocks, may_be_number
from apportion.records.importing.files import DOCUMENTS, document_of, rows_of
from apportion.records.importing.layout import Layout
from apportion.records.importing.prime_rl import rollouts_of
from apportion.records.importing.quick import blocks_of_csv, blocks_of_jsonl, blocks_of_parquet, numeric_columns
from apportion.records.importing.unfolding import is_folded, rows_in, unfolded
from apportion.records.rollout_log import RecordError
from apportion.rows import SUFFIXES, Rows, kind_of, schema_of
from apportion.untrusted import shown

HEAD, LATER_HEAD = 100, 4
"""Rows by which the columns of the first file of a run are known, and of each later one."""
_KEY = re.compile(r"(.+)_[0-9]+_[0-9]+", re.DOTALL)
ANSWERS = {"id", "answer", "votes", "samples", "stopped"}
"""Keys of the answers that apportion vote writes."""


@dataclass(frozen=True)
class Source:
    """One file: its columns, ``numeric`` ones of them, its first rows, and how its rows are read.

    ``rows`` returns its rows one by one if a quick reader cannot be used. Rows of a ``folded`` file held several
    rollouts each.
    """

    path: Path
    columns: list[str]
    numeric: list[str]
    head: list[dict[str, Any]]
    rows: Callable[[], Rows] | None
    folded: bool = False

    @classmethod
    def of(cls, path: Path, renamed: Mapping[str, str], rows: int) -> Source:
        """Return the file at ``path``, known by its first ``rows``. Rows that hold several rollouts are unfolded."""
        kind = kind_of(path)
        if not kind:
            raise RecordError(f"a run must end in {', '.join(SUFFIXES)}, got {shown(path.name)}; convert or rename it")
        slow = partial(rows_of, path)
        if kind in DOCUMENTS:  # which are parsed once
            slow = partial(rows_in, document_of(path), renamed, path)
        head = [row for _, row in islice(slow(), rows)]
        if not head:
            raise RecordError(f"a run must have at least one row, got none in {path}; check the file or remove it")
        if head[0].keys() >= ANSWERS:
            raise RecordError(
                f"{path} has the answers of a vote and not its rollouts; restore the file of its samples beside it, or "
                "name another file"
            )
        if sum(is_folded(row, renamed) for row in head) > len(head) / 2:

            def unfold() -> Rows:
                return unfolded(slow(), renamed, path)

            first = [row for _, row in islice(unfold(), rows)]
            return cls(path, *_columns(first), first, unfold, folded=True)
        columns, numeric = _columns(head)
        if kind == ".parquet":
            schema = schema_of(path)
            columns, numeric = list(schema.names), numeric_columns(schema)
        return cls(path, columns, numeric, head, slow if kind in DOCUMENTS else None)

    def blocks(self, layout: Layout) -> Iterable[Block]:
        """Return the rows of the file. Raises RecordError, and Unsure if they must be read again."""
        kind = kind_of(self.path)
        if layout.format == "prime-rl":
            return exact_blocks(self.path, layout, rollouts_of(self.path))
        if self.rows is not None:
            found = exact_blocks(self.path, layout, self.rows())
        elif kind == ".parquet":
            found = blocks_of_parquet(self.path, layout)
        else:
            found = (
                blocks_of_csv(self.path, layout) if kind == ".csv" else blocks_of_jsonl(self.path, layout, self.columns)
            )
        return map(_with_samples, found) if layout.format == "verl" and "group" not in layout.given else found

    def without_haste(self, columns: Sequence[str]) -> Source:
        """Return the file read row by row, or with further ``columns``."""
        if columns:
            return replace(self, columns=[*self.columns, *columns])
        return replace(self, rows=partial(rows_of, self.path))

    def list_lengths(self, ignored: Collection[str]) -> dict[str, int]:
        """Return the usual length of lists of numbers in ``ignored`` columns."""
        found = {}
        for name in ignored:
            lengths = [len(cell) for row in self.head if isinstance(cell := row.get(name), list) and _is_numbers(cell)]
            if lengths and len(lengths) >= len(self.head) / 2:
                found[name] = int(np.median(lengths))
        return found


def _columns(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Return the columns of ``rows``, and those of them that hold numbers or nothing."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return columns, [name for name in columns if all(may_be_number(row.get(name)) for row in rows)]


def _is_numbers(cell: list[Any]) -> bool:
    return len(cell) > 1 and all(type(each) in (int, float, bool) for each in cell)


def _with_samples(block: Block) -> Block:
    """Return a block of verl in which the sample of each key is the group, so that a repeated prompt has several.

    Some trainers write ``uid``, the key of a row: sample, rollout and output in one text.
    """
    if "group" not in block.texts:
        return block
    keys, codes = block.texts["group"]
    known: dict[str, int] = {}
    places = coded([match[1] if (match := _KEY.fullmatch(key)) else key for key in keys], codes, known)
    return replace(block, texts={**block.texts, "group": (list(known), places)})
