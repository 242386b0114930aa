"""Blocks of Arrow tables, as pyarrow reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from apportion.records.importing.blocks import Block, above_trials, in_limits, missing
from apportion.records.importing.layout import Layout
from apportion.types import Counts, Floats

if TYPE_CHECKING:
    from pyarrow import ChunkedArray, Table


def block_of(table: Table, layout: Layout) -> Block | None:
    """Return the rows of ``table`` as a block, or None if a cell may be wrong or is of another type than expected."""
    numbers, texts = {}, {}
    for role, column in layout.numbers.items():
        values = _numbers(table[column], layout.format == "trl" and role != "step")
        if values is None or not in_limits(layout, role, values):
            return None
        numbers[role] = values
    for role, column in layout.texts.items():
        coded = _codes(table[column])
        if coded is None:
            return None
        texts[role] = coded
    block = Block(table.num_rows, numbers, texts)
    return block if missing(block) is None and above_trials(block) is None else None


def _numbers(column: ChunkedArray, nan_is_none: bool) -> Floats | None:
    """Return a column of numbers as floats, nan for null; None for another type, and for nan among the values."""
    from pyarrow import types  # noqa: PLC0415 - an optional extra

    kind = column.type
    if types.is_null(kind):
        return np.full(len(column), np.nan)
    if types.is_boolean(kind):
        column = column.cast("int8")
    elif not (types.is_integer(kind) or types.is_floating(kind)):
        return None
    found: Any = np.asarray(column.cast("float64", safe=False).fill_null(np.nan).to_numpy())
    return None if not nan_is_none and np.isnan(found).sum() != column.null_count else found


def _codes(column: ChunkedArray) -> tuple[list[str], Counts] | None:
    """Return the distinct texts of a column and the code of each row, -1 for null; None for another type."""
    from pyarrow import ArrowException, types  # noqa: PLC0415 - an optional extra

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_null(kind):
        return [], np.full(len(column), -1)
    if types.is_integer(kind):
        column = column.cast("string")
    elif not (types.is_string(kind) or types.is_large_string(kind)):
        return None
    try:
        coded = column.dictionary_encode().unify_dictionaries().combine_chunks()
        coded = coded.chunk(0) if hasattr(coded, "chunk") else coded
        return coded.dictionary.to_pylist(), np.asarray(coded.indices.fill_null(-1)).astype(np.int64)
    except (ArrowException, UnicodeDecodeError):
        return None
