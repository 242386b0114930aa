"""Blocks of rows as columns: numbers as floats, texts as codes.

``exact_block`` reads cell by cell, and says what is wrong. It defines what a row means. The readers of whole blocks by
pyarrow are faster, and return None if they are in doubt, so that the same rows are read again by ``exact_block``.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from apportion.records.importing.layout import OPTIONAL, STEP, Layout
from apportion.records.rollout_log import RecordError
from apportion.rows import Rows, kind_of, row_location
from apportion.types import Counts, Floats
from apportion.untrusted import check_depth, parse_number, shown

ROWS = 20_000
"""Rows of a block that is read cell by cell."""

TRUTHS = {"true": 1.0, "false": 0.0}
WORDS = TRUTHS | dict.fromkeys(("yes", "pass", "passed", "correct"), 1.0)
WORDS |= dict.fromkeys(("no", "fail", "failed", "incorrect", "wrong"), 0.0)
"""Verdicts in words, of any case."""

MISSING = ("nan", "na", "n/a", "none", "null")
"""How programs write a number that is missing."""

NO_NUMBER = -sys.float_info.max
"""Stands for a cell that holds something else than a number. It is outside the limits of every column."""


class Unsure(Exception):
    """Raised if a quick reader may read a file otherwise than row by row, or finds ``columns`` that were not known."""

    def __init__(self, columns: Sequence[str] = ()) -> None:
        super().__init__()
        self.columns = tuple(columns)


@dataclass(frozen=True, eq=False)
class Block:
    """R rows of one file.

    Args:
        rows: R.
        numbers: what a column says -> its values [R], nan for none.
        texts: what a column says -> its distinct texts and the code of each row [R], -1 for none.
    """

    rows: int
    numbers: Mapping[str, Floats]
    texts: Mapping[str, tuple[list[str], Counts]]

    def problem(self, layout: Layout) -> tuple[int, str, str] | None:
        """Return the first row that lacks what each row must have, what is wrong there, and the remedy.

        That is a step, a prompt, and the rollouts of a count, of which no more may be correct.
        """
        counted = {"correct", "share", "trials"} if "trials" in self.numbers else set()
        absent = {role: np.isnan(self.numbers[role]) for role in {"step"} | counted if role in self.numbers}
        key = next(role for role in ("id", "prompt", "group") if role in self.texts)
        texts, codes = self.texts[key]
        absent[key] = (codes < 0) | (codes == (texts.index("") if "" in texts else -1))
        if found := [(int(rows.argmax()), role) for role, rows in absent.items() if rows.any()]:
            place, role = min(found)
            column = (layout.numbers | layout.texts)[role]
            return place, f"{column} must be given in every row, got nothing", "correct or remove the row"
        if {"correct", "trials"} <= self.numbers.keys():
            correct, trials = self.numbers["correct"], self.numbers["trials"]
            if (above := correct > trials).any():
                place = int(above.argmax())
                return (
                    place,
                    f"correct must be at most trials, got {correct[place]:g} of {trials[place]:g}",
                    "correct it",
                )
        return None


def exact_blocks(path: Path, layout: Layout, rows: Rows) -> Iterator[Block]:
    """Yield blocks of ``rows``, each with its number. Raise RecordError that names the row and the column."""
    while some := list(islice(rows, ROWS)):
        yield exact_block(path, layout, some)


def exact_block(path: Path, layout: Layout, rows: Sequence[tuple[int, dict[str, Any]]]) -> Block:
    """Return ``rows``, each with its number, as a block; errors as above."""
    numbers: dict[str, Floats] = {}
    texts: dict[str, tuple[list[str], Counts]] = {}
    for role, column in layout.numbers.items():
        cells = [row.get(column) for _, row in rows]
        if layout.has_nan(role):
            cells = [None if cell != cell else cell for cell in cells]
        if role == "step":
            cells = [_step(cell) if isinstance(cell, str) else cell for cell in cells]
        words = layout.may_hold_words(role)
        numbers[role] = np.array([_number(cell, words) for cell in cells])
        wrong = layout.out_of_limits(role, numbers[role])
        if role.startswith("other ") and not layout.made_of_others:
            numbers[role][wrong] = np.nan
        elif wrong.any():
            low, high, whole = layout.limits(role)
            kind, place = f"a {'whole' if whole else 'finite'} number from {low:g} to {high:g}", int(wrong.argmax())
            at = row_location(path, rows[place][0])
            raise RecordError(
                f"{column} must be {kind}, got {shown(cells[place])} in {at}; {_remedy(role, cells[place], path)}"
            )
    for role, column in layout.texts.items():
        codes: dict[str | None, int] = {None: -1}
        made = [codes.setdefault(_text(row.get(column), column, path, number), len(codes) - 1) for number, row in rows]
        texts[role] = [text for text in codes if text is not None], np.array(made)
    block = Block(len(rows), numbers, texts)
    if (problem := block.problem(layout)) is not None:
        place, said, remedy = problem
        raise RecordError(f"{said} in {row_location(path, rows[place][0])}; {remedy}")
    return block


def _remedy(role: str, cell: Any, path: Path) -> str:
    """Return what to do about a wrong number."""
    if str(cell).strip().lower() in MISSING and role not in OPTIONAL:
        return f"correct it, or {'leave it empty' if kind_of(path) == '.csv' else 'write null'} for a missing one"
    if role in OPTIONAL:
        return f"correct it, or leave the column out by --column {role}="
    if role == "correct":
        return "correct it, or name the number of rollouts by --column trials= or a score by --reward"
    return "correct it"


def coded(texts: Iterable[str], codes: Counts, known: dict[str, int]) -> Counts:
    """Return ``codes`` of texts as numbers of all that are ``known``, which get the new ones. -1 stays."""
    return np.asarray([*(known.setdefault(text, len(known)) for text in texts), -1])[codes]


def may_be_number(cell: Any) -> bool:
    """Return whether a cell is a number, a verdict, or empty."""
    return _number(cell) != NO_NUMBER


def _number(cell: Any, words: bool = True) -> float:
    """Return the number in ``cell``, nan for an empty one. A verdict is one, in any of ``WORDS`` if ``words``."""
    if cell is None:
        return math.nan
    try:
        if isinstance(cell, str):
            text, known = cell.strip().lower(), WORDS if words else TRUTHS
            if not text:
                return math.nan
            value = known[text] if text in known else parse_number(text)
        else:
            value = float(cell) if isinstance(cell, (bool, int, float, Decimal)) else NO_NUMBER
    except (ValueError, OverflowError):
        return NO_NUMBER
    return NO_NUMBER if math.isnan(value) else value


def _step(cell: str) -> str:
    """Return the number at the end of a text such as step_12; another text as it is."""
    found = STEP.search(cell)
    return found[1] if found and found[1] and cell.endswith(found[1]) else cell


def _text(cell: Any, column: str, path: Path, number: int) -> str | None:
    """Return the text in ``cell``. Messages of a chat become their JSON, whatever the order of their keys."""
    if cell is None or isinstance(cell, str):
        return cell
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
    """Return messages with the role first, then the content, then other keys by name."""
    if isinstance(cell, dict):
        keys = sorted(cell, key=lambda key: ({"role": 0, "content": 1}.get(key, 2), str(key)))
        return {key: _in_order(cell[key]) for key in keys}
    return [_in_order(each) for each in cell] if isinstance(cell, (list, tuple)) else cell
