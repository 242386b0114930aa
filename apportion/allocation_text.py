"""An allocation as text: for people, the counts or their distribution and the gain over uniform; for programs, JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from apportion.solve import Allocation
from apportion.types import Counts

ALL_ROWS, FIRST_ROWS, LONGEST_NAME = 20, 10, 40
MOST_BARS, BAR = 12, 40

Cells = list[list[str]]


def allocation_text(result: Allocation, ids: Sequence[Any] | None, terminal: bool) -> str:
    """Counts beside uniform ones, and both objectives; drawn tables on a ``terminal``, else aligned columns.

    Beyond 20 prompts only the first 10 are listed, and the distribution of the counts follows.

    >>> from apportion.solve import solve
    >>> print(allocation_text(solve([0.1, 0.5, 0.9], 24, high=12), None, terminal=False))
    prompt  rollouts  uniform
         0         7        8
         1        10        8
         2         7        8
    <BLANKLINE>
    gradient variance: 0.2311, uniform 0.2457 (ratio 0.9406)
    """
    number = len(result.counts)
    names = [" ".join(str(name).split())[:LONGEST_NAME] for name in (range(number) if ids is None else ids)]
    shown = number if number <= ALL_ROWS else FIRST_ROWS
    rows = [[names[q], str(result.counts[q]), str(result.uniform_counts[q])] for q in range(shown)]
    draw = _drawn if terminal else _aligned
    parts = [draw(["prompt" if ids is None else "id", "rollouts", "uniform"], rows)]
    if shown < number:
        parts[0] += f"\n... and {number - shown} more; --json or --out gives all"
        parts.append(draw(["rollouts", "prompts", ""], distribution(result.counts)))
    return "\n\n".join([*parts, _objectives(result)])


def allocation_json(settings: Mapping[str, Any], result: Allocation, ids: Sequence[Any] | None) -> str:
    """One JSON object: ``settings``, counts [P], both objectives (null where undefined), and ``ids`` [P] if there are.

    >>> from apportion.solve import solve
    >>> allocation_json({"budget": 6}, solve([0.5, 0.5], 6), ["a", "b"])[:58]
    '{"budget": 6, "prompts": 2, "counts": [3, 3], "measure": "'
    """
    uniform = {"counts": result.uniform_counts.tolist(), "objective": _finite(result.uniform_objective)}
    counts = {"prompts": len(result.counts), "counts": result.counts.tolist()}
    score = {"measure": result.measure, "objective": _finite(result.objective), "uniform": uniform}
    named = {} if ids is None else {"ids": [id if id is None or isinstance(id, (str, int)) else str(id) for id in ids]}
    return json.dumps({**settings, **counts, **score, **named}, allow_nan=False)


def distribution(counts: Counts) -> Cells:
    """How many prompts got how many rollouts, with a bar each; ranges where there are more than 12 values.

    >>> distribution(np.array([3, 3, 5]))
    [['3', '2', '########################################'], ['5', '1', '####################']]
    """
    values, prompts = np.unique(counts, return_counts=True)
    labels = [str(value) for value in values]
    if len(values) > MOST_BARS:
        width = -(-(int(values[-1] - values[0]) + 1) // MOST_BARS)
        place = (values - values[0]) // width
        prompts = np.bincount(place, weights=prompts).astype(np.int64)
        starts = values[0] + width * np.arange(len(prompts))
        labels = [f"{start}-{min(start + width - 1, values[-1])}" for start in starts]
    return [
        [label, str(number), "#" * math.ceil(BAR * number / prompts.max())]
        for label, number in zip(labels, prompts, strict=True)
    ]


def _objectives(result: Allocation) -> str:
    name, ours, uniform = result.measure.replace("_", " "), _finite(result.objective), _finite(result.uniform_objective)
    if ours is None or uniform is None:
        return f"{name}: undefined, for some prompt has a group of one"
    ratio = f" (ratio {ours / uniform:.4g})" if uniform else ""
    return f"{name}: {ours:.4g}, uniform {uniform:.4g}{ratio}"


def _finite(number: float) -> float | None:
    """``number``, or None where it is infinite or undefined: the variance of a group of one."""
    return number if math.isfinite(number) else None


def _aligned(header: list[str], rows: Cells) -> str:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    last_is_bar = not header[-1]
    lines = []
    for row in [header, *rows]:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        if last_is_bar:
            cells[-1] = row[-1]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _drawn(header: list[str], rows: Cells) -> str:
    from rich.console import Console  # noqa: PLC0415 - an optional extra, and slow to import
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table()
    for name in header:
        table.add_column(name, justify="right" if name else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    console = Console()
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip()
