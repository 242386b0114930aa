"""What the cells of rows say: numbers, verdicts in words, steps and texts. Errors name the row and the column."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from apportion.records.importing.layout import Layout
from apportion.records.importing.names import NUMBERS, OPTIONAL, STEP, USUAL, asked_in, number_in, truncation_in
from apportion.records.rollout_log import RecordError
from apportion.rows import row_location
from apportion.types import Floats, Mask
from apportion.untrusted import check_depth, shown

Rows = Sequence[tuple[int, dict[str, Any]]]
"""Some rows of one file, each with its number."""

MISSING = ("nan", "na", "n/a", "none", "null")
"""Texts by which programs mark a missing number."""

SHARE_ERROR = 1e-3
"""Rounding error allowed in a share of correct rollouts, times the rollouts."""


def numbers_of(path: Path, layout: Layout, role: str, rows: Rows) -> Floats:
    """Return a column of numbers as floats [R], nan for none. Raise RecordError for a cell that is wrong there."""
    column, kind, counts = layout.numbers[role], role.split()[0], "trials" in layout.columns
    cells = [row.get(column) for _, row in rows]
    if role == "truncated":
        return np.array([truncation_in(cell) for cell in cells])
    if role == "step":
        cells = [_step(cell) if isinstance(cell, str) else cell for cell in cells]
    elif layout.format == "trl":  # TRL writes NaN for a missing value
        cells = [None if cell != cell else cell for cell in cells]
    words = not counts and kind in ("correct", "reward", "other")
    numbers = np.array([number_in(cell, words) for cell in cells])
    low, high, whole = NUMBERS["trials"] if counts and kind == "correct" else NUMBERS.get(kind, NUMBERS["reward"])
    wrong = (numbers < low) | (numbers > high) | (whole & (numbers > np.floor(numbers)))
    if kind == "other" and not layout.made_of_others:
        numbers[wrong] = np.nan
    elif wrong.any():
        cell = cells[int(wrong.argmax())]
        said = f"{column} must be a {'whole' if whole else 'finite'} number from {low:g} to {high:g}, got {shown(cell)}"
        _refuse(path, rows, wrong, said, _remedy(role, cell, rows[int(wrong.argmax())][1]))
    return numbers


def check_rows(path: Path, layout: Layout, rows: Rows, columns: Mapping[str, Any]) -> None:
    """Raise RecordError for a row without a required value, given its numbers and texts in ``columns`` [R].

    That is a step, a prompt, and the rollouts of a count, of which a whole number, and no more than all, are correct.
    """
    key = next(role for role in ("id", "prompt", "group") if role in columns)
    absent = {key: np.array([not text for text in columns[key]])}
    needed = {"step"} | ({"correct", "share", "trials"} if "trials" in columns else set())
    absent |= {role: np.isnan(columns[role]) for role in needed if role in columns}
    for role, wrong in absent.items():
        said = f"{layout.columns[role]} must be given in every row, got nothing"
        other = ", or leave the column out by --column id=" if role == "id" and "prompt" in columns else ""
        _refuse(path, rows, wrong, said, f"correct or remove the row{other}")
    if "trials" in columns:
        trials, given = columns["trials"], columns.get("share", columns.get("correct"))
        right = given * trials if "share" in columns else given
        wrong = (right > trials) | (np.abs(right - np.rint(right)) > SHARE_ERROR * trials)
        place = int(wrong.argmax())
        said = f"correct must be a whole number of rollouts, at most trials, got {given[place]:g} of {trials[place]:g}"
        _refuse(path, rows, wrong, said, "correct it")


def _refuse(path: Path, rows: Rows, wrong: Mask, said: str, remedy: str) -> None:
    """Raise RecordError for the first row marked in ``wrong`` [R], if there is one."""
    if wrong.any():
        raise RecordError(f"{said} in {row_location(path, rows[int(wrong.argmax())][0])}; {remedy}")


def _remedy(role: str, cell: Any, row: dict[str, Any]) -> str:
    """Return the remedy for a wrong number."""
    if str(cell).strip().lower() in MISSING and role not in OPTIONAL:
        return "correct it, or leave it empty for a missing one"
    if role == "share":
        return "correct it, and divide percentages by 100"
    if role in OPTIONAL:
        return f"correct it, or leave the column out by --column {role}="
    if role == "correct" and (right := number_in(cell)) > 1:
        larger = [name for name, other in row.items() if other is not cell and number_in(other) >= right]
        return f"correct it{f', or name the number of rollouts by --column trials={larger[0]}' if larger else ''}"
    return "correct it"


def _step(cell: str) -> str:
    """Return the number at the end of a text such as step_12; another text as it is."""
    found = STEP.search(cell)
    return found[1] if found and found[1] and cell.endswith(found[1]) else cell


def texts_of(path: Path, layout: Layout, role: str, rows: Rows) -> list[str | None]:
    """Return a column of texts [R], None for none. Raise RecordError for a cell that is no text."""
    column = layout.texts[role]
    asks = role == "prompt" and column not in USUAL[role] and role not in layout.given
    return [
        cell if cell is None or isinstance(cell, str) else _text(cell, column, path, number)
        for number, row in rows
        for cell in [asked_in(row.get(column)) if asks else row.get(column)]
    ]


def _text(cell: Any, column: str, path: Path, number: int) -> str:
    """Return the text in ``cell``. Messages of a chat become their JSON, whatever the order of their keys."""
    if isinstance(cell, (bool, int, float)):
        return str(cell)
    try:
        check_depth(cell)
        return json.dumps(_in_order(cell), ensure_ascii=False)
    except (TypeError, ValueError) as error:
        at = row_location(path, number)
        raise RecordError(
            f"a text must be text or messages, got {shown(cell)} for {column} in {at}; correct it"
        ) from error


def _in_order(cell: Any) -> Any:
    """Return messages with their keys in a fixed order: role, content, then others by name."""
    if isinstance(cell, dict):
        keys = sorted(cell, key=lambda key: ({"role": 0, "content": 1}.get(key, 2), str(key)))
        return {key: _in_order(cell[key]) for key in keys}
    return [_in_order(each) for each in cell] if isinstance(cell, (list, tuple)) else cell
