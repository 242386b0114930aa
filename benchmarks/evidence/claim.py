"""A claim of a paper, what we found, and the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from apportion.lab.report.results import SeedInterval
from benchmarks.common import RESULTS

Values = Mapping[str, Any]
"""What a cell measured: JSON values by name."""


class Verdict(StrEnum):
    """What our figures say about a claim."""

    HOLDS = "holds"
    CONDITIONS = "holds under conditions"
    FAILS = "does not hold"
    OPEN = "cannot be told"


@dataclass(frozen=True)
class Finding:
    """What was found about a claim.

    Args:
        ours: our figures with their intervals, in a few words.
        verdict: the verdict that follows from the figures.
        why: one or two sentences: the condition, the control, or what the figures do not show.
        columns, rows: a table with the details, if there is one.
    """

    ours: str
    verdict: Verdict
    why: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of a paper.

    Args:
        where: the section, table or figure of the paper.
        claim: the claim in one sentence of our own words.
        figure: the paper's figure.
        setting: how our setting differs from the paper's.
        cells: the names of the cells that ``judge`` reads, of any module; a name that ends in ``*`` stands for all that
            begin so.
        judge: makes the finding from the values of those cells, by the name of the cell.
    """

    where: str
    claim: str
    figure: str
    setting: str
    judge: Callable[[Mapping[str, Values]], Finding]
    cells: Sequence[str] = field(default=())

    def needs(self, names: Sequence[str]) -> list[str]:
        """Return those of ``names`` that the claim reads. Raises ValueError if one of its cells is not among them."""
        found = []
        for cell in self.cells:
            own = [name for name in names if name == cell or (cell.endswith("*") and name.startswith(cell[:-1]))]
            if not own:
                raise ValueError(f"the cells of claim {self.where!r} must exist, got {cell}; correct its name")
            found += own
        return found


def headline(table: str, row: str, column: str) -> str:
    """Return a cell of a table under ``benchmarks/results``, which ``headlines.toml`` must name."""
    return json.loads((RESULTS / f"{table}.json").read_text(encoding="utf-8"))[row][column]


def interval(values: Sequence[float], form: str = ".3f") -> str:
    """Return the mean of ``values``, one for each seed, with its 95% interval as text: "+0.012 ± 0.030"."""
    found = SeedInterval.of(values)
    return format(found.mean, form) + (
        "" if found.half_width is None else f" ± {format(found.half_width, form.lstrip('+'))}"
    )


def difference(mine: Sequence[float], control: Sequence[float]) -> SeedInterval:
    """Return the interval of the difference between two rules, paired by seed."""
    if len(mine) != len(control):
        raise ValueError(f"paired values must be as many, got {len(mine)} and {len(control)}; pair them by seed")
    return SeedInterval.of(np.subtract(mine, control).tolist())


def sign(found: SeedInterval) -> int:
    """Return 1 or -1 if the whole interval lies above or below 0, else 0."""
    return 0 if found.contains_zero else int(np.sign(found.mean))
