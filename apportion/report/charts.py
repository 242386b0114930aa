"""Charts and tables as values: what is drawn as SVG, and written as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from apportion.report.curves import COSTS, Curve
from apportion.types import Floats


@dataclass(frozen=True)
class ReportTable:
    """A table: its caption, header and rows of texts. ``align`` has "l" or "r" for each column.

    ``notes`` are what is to be said about it.
    """

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    align: str
    notes: tuple[str, ...] = ()


def table_of(
    caption: str, header: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str] = (), left: int = 1
) -> ReportTable:
    """Return a table. The first ``left`` columns are aligned to the left, and all others to the right."""
    align = "l" * left + "r" * (len(header) - left)
    return ReportTable(caption, tuple(header), tuple(map(tuple, rows)), align, tuple(notes))


@dataclass(frozen=True, eq=False)
class ChartSeries:
    """One line of a chart. ``style`` is the index of its run in the table of runs.

    ``more`` has further columns of the table of the chart, each with a text for each point.
    """

    name: str
    style: int
    curve: Curve
    more: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Chart:
    """A chart of lines, over costs, over numbers, or of shares over other shares with a diagonal.

    Args:
        key: its name in JSON and in links.
        title: what it shows, in a few words.
        text: what to see, in one or two sentences.
        series: what is drawn.
        y_label: the words beside the axis.
        x_label: the words below the axis; of lines over costs, the costs are the words.
        label: what a series is, above its name in the table.
        percent: whether heights are shares, shown as percentages.
        from_zero: whether heights begin at 0, though all values are far from it.
        numbers: whether it is over numbers.
    """

    key: str
    title: str
    text: str
    series: tuple[ChartSeries, ...]
    y_label: str
    x_label: str = ""
    label: str = "run"
    percent: bool = True
    from_zero: bool = False
    numbers: bool = False

    @property
    def costs(self) -> tuple[str, ...]:
        """The costs that some series is known over; ("",) for a chart that is not over costs."""
        return tuple(key for key in COSTS if any(key in each.curve.x for each in self.series)) or ("",)

    @property
    def table(self) -> ReportTable:
        """The numbers as a table: one row per point, or one row per shared place if all series have the same places."""
        places = (self.x_label,) if self.costs == ("",) else (*COSTS,)
        first = self.series[0].curve
        if len(self.series) > 1 and all(each.curve.x is first.x for each in self.series):
            rows = [
                [*self._places(first.x, at), *(self._height(each.curve.y[at]) for each in self.series)]
                for at in range(len(first.y))
            ]
            return table_of(self.title, (*places, *(each.name for each in self.series)), rows, left=0)
        ends = ("from", "to") if any(np.isfinite(each.curve.low).any() for each in self.series) else ()
        rows = [
            [
                each.name,
                *self._places(each.curve.x, at),
                *(self._height(own[at]) for own in (each.curve.y, each.curve.low, each.curve.high)[: 1 + len(ends)]),
                *(column[at] for column in each.more.values()),
            ]
            for each in self.series
            for at in np.flatnonzero(np.isfinite(each.curve.y)).tolist()
        ]
        return table_of(self.title, (self.label, *places, self.y_label, *ends, *self.series[0].more), rows)

    def _height(self, value: float) -> str:
        return percent(value, 1) if self.percent else f"{value:.4g}" if math.isfinite(value) else "unknown"

    def _places(self, x: Mapping[str, Floats], at: int) -> list[str]:
        if "" in x:
            return [count(x[""][at]) if self.numbers else percent(x[""][at], 1)]
        forms = {"rollouts": count, "tokens": count, "hours": hours}
        return [forms[key](x[key][at] if key in x else None) for key in COSTS]


def percent(value: float | None, digits: int = 0) -> str:
    """Return a share as text.

    >>> percent(0.494), percent(0.494, 1), percent(None), percent(0.0004)
    ('49%', '49.4%', 'unknown', '0.04%')
    """
    if value is None or not math.isfinite(value):
        return "unknown"
    if 0 < abs(value) < 0.005 and digits == 0:
        return f"{100 * value:.2g}%"
    return f"{100 * value:.{digits}f}%"


def count(value: float | None) -> str:
    """Return a number with thousands separated.

    >>> count(512000), count(None), count(float("nan"))
    ('512,000', 'unknown', 'unknown')
    """
    return "unknown" if value is None or not math.isfinite(value) else f"{value:,.0f}"


def hours(value: float | None) -> str:
    """Return a time in hours.

    >>> hours(12.34), hours(0.00123), hours(None)
    ('12.3', '0.0012', 'unknown')
    """
    if value is None or not math.isfinite(value):
        return "unknown"
    return f"{value:,.1f}" if value >= 1 or value == 0 else f"{value:.2g}"
