"""Charts and tables as values: what is drawn as SVG, printed as text, and written as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from apportion.report.curves import COSTS, Curve
from apportion.types import Counts, Floats

Form = Literal["lines", "stack", "points", "bars"]


@dataclass(frozen=True)
class ReportTable:
    """A table: its caption, header and rows of texts. ``align`` has "l" or "r" for each column."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    align: str

    def __post_init__(self) -> None:
        widths = {len(self.header), len(self.align), *map(len, self.rows)}
        if len(widths) > 1:
            raise ValueError(f"a table must have as many cells in each row as in its header, got {sorted(widths)}")


def table_of(caption: str, header: Sequence[str], rows: Iterable[tuple[str, ...]], align: str = "") -> ReportTable:
    """Return a table. By default its first column is aligned to the left, and all others to the right."""
    return ReportTable(caption, tuple(header), tuple(rows), align or "l" + "r" * (len(header) - 1))


@dataclass(frozen=True, eq=False)
class ChartSeries:
    """One line, layer or set of points. ``style`` is the place of its run in the table of runs, or of its layer."""

    name: str
    style: int
    curve: Curve


@dataclass(frozen=True, eq=False)
class Chart:
    """One chart.

    Args:
        key: its name in JSON and in links.
        title: what it shows, in a few words.
        text: what to see, in one or two sentences.
        detail: what the drawing shows in words, for those who do not see it.
        form: lines over costs, a stack of shares over costs, points with intervals, or bars.
        series: what is drawn.
        x_label: the words below the axis; of charts over costs, the costs are the words.
        y_label: the words beside the axis.
        percent: whether heights are shares, shown as percentages.
        from_zero: whether heights begin at 0, though all values are far from it.
        unit: whether heights reach from 0 to 1, whatever the values are.
        diagonal: whether the line is drawn on which both axes are equal.
        x_percent: whether places are shares.
        layer_label: the words above the names of the layers of a stack.
        notes: what is not drawn, and why.
        table: the numbers.
    """

    key: str
    title: str
    text: str
    form: Form
    series: tuple[ChartSeries, ...]
    table: ReportTable
    x_label: str = ""
    y_label: str = ""
    detail: str = ""
    percent: bool = True
    from_zero: bool = False
    unit: bool = False
    diagonal: bool = False
    x_percent: bool = False
    layer_label: str = ""
    notes: tuple[str, ...] = ()

    @property
    def costs(self) -> tuple[str, ...]:
        """The costs that some series is known over; ("",) for a chart that is not over costs."""
        if self.form in ("points", "bars"):
            return ("",)
        return tuple(key for key in COSTS if any(key in each.curve.x for each in self.series))


def bar(name: str, style: int, interval: Iterable[float | Floats]) -> ChartSeries:
    """Return a bar: its value, and the low and the high end of its ``interval``."""
    return ChartSeries(name, style, Curve({}, *(np.array([value], float) for value in interval)))


def calibration_chart(
    key: str,
    title: str,
    text: str,
    found: Sequence[tuple[ChartSeries, Counts | Floats]],
    header: Sequence[str],
    labels: tuple[str, str],
    notes: Iterable[str] = (),
) -> Chart:
    """Return the chart of shares [K] against shares, each with the numbers [K] of what its points are means of."""
    rows = (
        (each.name, *(percent(value, 1) for value in values), count(number))
        for each, numbers in found
        for *values, number in zip(
            each.curve.x[""], each.curve.y, each.curve.low, each.curve.high, numbers, strict=True
        )
    )
    return Chart(
        key, title, text, "points", tuple(each for each, _ in found), table_of(title, header, rows),
        x_label=labels[0], y_label=labels[1], unit=True, diagonal=True, x_percent=True, notes=tuple(notes),
    )  # fmt: skip


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


def curve_table(caption: str, series: Sequence[ChartSeries], name: str, as_percent: bool = True) -> ReportTable:
    """Return the table of some curves over costs: a row for each point of each curve."""
    has_interval = any(np.isfinite(each.curve.low).any() for each in series)
    header = ("run", *COSTS, name, *(("from", "to") if has_interval else ()))
    rows = []
    for each in series:
        curve = each.curve
        for place in np.flatnonzero(np.isfinite(curve.y)).tolist():
            values = [curve.y[place], *((curve.low[place], curve.high[place]) if has_interval else ())]
            shown = [percent(value, 1) if as_percent else f"{value:.4g}" for value in values]
            rows.append((each.name, *costs_at(curve.x, place), *shown))
    return table_of(caption, header, rows)


def costs_at(x: Mapping[str, Floats], place: int) -> tuple[str, ...]:
    """Return the cumulative rollouts, tokens and hours at a place of a curve, as texts."""
    forms = {"rollouts": count, "tokens": count, "hours": hours}
    return tuple(forms[key](float(x[key][place]) if key in x else None) for key in COSTS)
