"""Blocks of rows as columns: numbers as floats, texts as codes.

``exact_block`` reads cell by cell, and says what is wrong. It defines what a row means. The readers of whole blocks by
pyarrow are faster, and return None if they are in doubt, so that the same rows are read again by ``exact_block``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from apportion.records.importing.layout import Layout
from apportion.records.rollout_log import RecordError
from apportion.rows import Rows, row_location
from apportion.types import Counts, Floats
from apportion.untrusted import check_depth, parse_number, shown

ROWS = 20_000
"""Rows of a block that is read cell by cell."""

TRUTHS = {"true": 1.0, "false": 0.0}
WORDS = TRUTHS | dict.fromkeys(("yes", "pass", "passed", "correct"), 1.0)
WORDS |= dict.fromkeys(("no", "fail", "failed", "incorrect", "wrong"), 0.0)
"""Verdicts in words, of any case."""


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
    texts: Mapping[str, tuple[Sequence[str], Counts]]


def exact_blocks(path: Path, layout: Layout, rows: Rows) -> Iterator[Block]:
    """Yield blocks of ``rows``, each with its number. Raise RecordError that names the row and the column."""
    while some := list(islice(rows, ROWS)):
        yield exact_block(path, layout, some)


def exact_block(path: Path, layout: Layout, rows: Sequence[tuple[int, dict[str, Any]]]) -> Block:
    """Return ``rows``, each with its number, as a block; errors as above."""
    numbers = {role: np.full(len(rows), np.nan) for role in layout.numbers}
    for role, column in layout.numbers.items():
        low, high, whole = layout.limits(role)
        for place, (number, row) in enumerate(rows):
            cell = row.get(column)
            if cell is None or (isinstance(cell, str) and not cell.strip()):
                continue
            value = _number(cell, layout.may_hold_words(role))
            if math.isnan(value) and layout.format == "trl" and isinstance(cell, float) and role != "step":
                continue
            if role.startswith("other ") and not layout.made_of_others and not low <= value <= high:
                continue
            if not low <= value <= high or (whole and value != int(value)):
                kind = f"a {'whole' if whole else 'finite'} number from {low:g} to {high:g}"
                raise RecordError(
                    f"{column} must be {kind}, got {shown(cell)} in {row_location(path, number)}; correct it"
                )
            numbers[role][place] = value
    texts: dict[str, tuple[Sequence[str], Counts]] = {}
    for role, column in layout.texts.items():
        codes: dict[str, int] = {}
        made = np.full(len(rows), -1)
        for place, (number, row) in enumerate(rows):
            text = _text(row.get(column), column, path, number)
            if text is not None:
                made[place] = codes.setdefault(text, len(codes))
        texts[role] = list(codes), made
    block = Block(len(rows), numbers, texts)
    if (wrong := missing(block)) is not None:
        place, role = wrong
        raise RecordError(
            f"{(layout.numbers | layout.texts)[role]} must be given in every row, got nothing in "
            f"{row_location(path, rows[place][0])}; correct or remove the row"
        )
    if (above := above_trials(block)) is not None:
        correct, trials = block.numbers["correct"][above], block.numbers["trials"][above]
        raise RecordError(
            f"correct must be at most trials, got {correct:g} of {trials:g} in "
            f"{row_location(path, rows[above][0])}; correct it"
        )
    return block


def missing(block: Block) -> tuple[int, str] | None:
    """Return the first row without a step or a prompt, or a count without trials, and what is missing."""
    needed = {"step", "correct", "share", "trials"} if "trials" in block.numbers else {"step"}
    needed &= block.numbers.keys()
    found = [(np.isnan(block.numbers[role]), role) for role in sorted(needed)]
    key = "id" if "id" in block.texts else "prompt"
    texts, codes = block.texts[key]
    empty = codes < 0
    if "" in texts:
        empty = empty | (codes == list(texts).index(""))
    places = [(int(absent.argmax()), role) for absent, role in [*found, (empty, key)] if absent.any()]
    return min(places) if places else None


def above_trials(block: Block) -> int | None:
    """Return the first row with more correct rollouts than rollouts."""
    if not {"correct", "trials"} <= block.numbers.keys():
        return None
    above = block.numbers["correct"] > block.numbers["trials"]
    return int(above.argmax()) if above.any() else None


def in_limits(layout: Layout, role: str, values: Floats) -> bool:
    """Return whether all ``values`` [R], nan for none, are right for the column."""
    known = values[~np.isnan(values)]
    low, high, whole = layout.limits(role)
    if not len(known):
        return True
    return bool(known.min() >= low and known.max() <= high and (not whole or (known == np.floor(known)).all()))


def may_be_number(cell: Any) -> bool:
    """Return whether a cell is a number, a verdict, or empty."""
    return cell is None or (isinstance(cell, str) and not cell.strip()) or not math.isnan(_number(cell))


def _number(cell: Any, words: bool = True) -> float:
    """Return the number in ``cell``, nan if there is none. A verdict is one, in any of ``WORDS`` if ``words``."""
    if isinstance(cell, str):
        text = cell.strip()
        try:
            known = WORDS if words else TRUTHS
            return known[text.lower()] if text.lower() in known else parse_number(text)
        except ValueError:
            return math.nan
    try:
        return float(cell) if isinstance(cell, (bool, int, float, Decimal)) else math.nan
    except OverflowError:
        return math.nan


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
