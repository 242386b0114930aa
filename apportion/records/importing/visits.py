"""Group counts per visit: one prompt a line, with a list such as ``correct_of_8`` that has the count of each visit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from apportion.records.importing.files import rows_of
from apportion.records.importing.names import USUAL
from apportion.records.reading import record_of_visits
from apportion.records.rollout_log import RecordError
from apportion.records.run_record import RunRecord
from apportion.rows import MOST_ROWS
from apportion.untrusted import shown

LARGEST = 10**6
"""Rollouts of the largest group."""


def read_visits(path: Path, name: str) -> RunRecord:
    """Return the run in the file. Raise RecordError, which names the line, for what cannot be read."""
    key, total = "", 0
    counts: list[list[int]] = []
    ids: dict[str, int] = {}
    texts: list[str | None] = []
    for line, row in rows_of(path):
        at = f"{path} line {line}"
        key = key or _key(row, at)
        size = int(key.removeprefix("correct_of_"))
        cells, text = row.get(key), _first(row, "prompt")
        if not isinstance(cells, list) or not all(type(cell) is int and 0 <= cell <= size for cell in cells):
            raise RecordError(f"{key} must be a list of whole numbers from 0 to {size}, got {shown(cells)} in {at}")
        id = _first(row, "id", row.get("index"))
        if id is None:
            id = f"{text} (line {line})" if isinstance(text, str) and text in ids else text
        if not isinstance(id, (str, int)) or isinstance(id, bool) or id == "":
            raise RecordError(f"id must be a text or a whole number, got {shown(id)} in {at}; give one")
        if str(id) in ids:
            raise RecordError(f"a prompt must have one line, got {shown(id)} in {at} and line {ids[str(id)]}")
        if text is not None and not isinstance(text, str):
            raise RecordError(f"prompt must be text, got {shown(text)} in {at}; correct it")
        total += len(cells) * size
        if total > MOST_ROWS:
            raise RecordError(f"a run must have at most {MOST_ROWS:,} rollouts, got more in {at}; import a part")
        ids[str(id)] = line
        counts.append(cells)
        texts.append(text)
    return record_of_visits(counts, size, list(ids), texts, name)


def _first(row: dict[str, Any], role: str, default: Any = None) -> Any:
    """Return the cell of a usual name of ``role``."""
    return next((row[name] for name in USUAL[role] if name in row), default)


def _key(row: dict[str, Any], at: str) -> str:
    """Return the name of the list of counts, whose end is the size of the groups."""
    (*other, key) = [name for name in row if name.startswith("correct_of_")] or [""]
    size = key.removeprefix("correct_of_")
    if other or not (size.isdigit() and size.isascii() and len(size) < 8 and 0 < int(size) <= LARGEST):
        raise RecordError(
            f"a line must have one list such as correct_of_8, got {shown(list(row))} in {at}; rename the column"
        )
    return key
