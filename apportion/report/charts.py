"""Charts and tables as values: what is drawn as SVG, printed as text, and written as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from apportion.report.curves import COSTS, Curve
from apportion.types import Floats


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


def table_of(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> ReportTable:
    """Return a table. By default its first column is aligned to the left, and all others to the right."""
    return ReportTable(caption, tuple(header), tuple(map(tuple, rows)), align or "l" + "r" * (len(header) - 1))


@dataclass(frozen=True, eq=False)
class ChartSeries:
    """One line or bar. ``style`` is the place of its run in the table of runs.

    ``more`` has further columns of the table of the chart, each with a text for each point.
    """

    name: str
    style: int
    curve: Curve
    more: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Chart:
    """One chart.

    Args:
        key: its name in JSON and in links.
        title: what it shows, in a few words.
        text: what to see, in one or two sentences.
        form: lines, over costs or over values of their own, or bars.
        series: what is drawn.
        x_label: the words below the axis; of lines over costs, the costs are the words.
        y_label: the words beside the axis.
        label: what a series is, above its name in the table.
        percent: whether heights are shares, shown as percentages.
        from_zero: whether heights begin at 0, though all values are far from it.
        unit: whether heights reach from 0 to 1, whatever the values are.
        diagonal: whether the line is drawn on which both axes are equal.
        x_percent: whether places are shares.
        layer_label: the words above the names of the lines.
        notes: what is not drawn, and why.
    """

    key: str
    title: str
    text: str
    form: Literal["lines", "bars"]
    series: tuple[ChartSeries, ...]
    x_label: str = ""
    y_label: str = ""
    label: str = "run"
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
        return tuple(key for key in COSTS if any(key in each.curve.x for each in self.series)) or ("",)

    @property
    def detail(self) -> str:
        """Where each line over costs begins and ends, for those who do not see the drawing."""
        if self.costs == ("",):
            return ""
        ends = [(each.name, each.curve.y[np.isfinite(each.curve.y)]) for each in self.series]
        return " ".join(
            f"{name}: {self._height(y[0], 0)} at first, {self._height(y[-1], 0)} at the end." for name, y in ends
        )

    @property
    def table(self) -> ReportTable:
        """The numbers: a row for each point; if all series have the same places, one for each place."""
        first = self.series[0].curve.x
        if len(self.series) > 1 and first and all(each.curve.x is first for each in self.series):
            header = (*self._place_names(), *(each.name for each in self.series))
            rows = [
                [*self._places(first, at), *(self._height(each.curve.y[at]) for each in self.series)]
                for at in range(len(self.series[0].curve.y))
            ]
            return table_of(self.title, header, rows, "r" * len(header))
        has_interval = any(np.isfinite(each.curve.low).any() for each in self.series)
        value = self.x_label if self.form == "bars" else self.y_label
        header = (
            self.label,
            *self._place_names(),
            value,
            *(("from", "to") if has_interval else ()),
            *self.series[0].more,
        )
        rows = [
            [
                each.name,
                *self._places(each.curve.x, at),
                *(
                    self._height(own[at])
                    for own in (each.curve.y, each.curve.low, each.curve.high)[: 1 + 2 * has_interval]
                ),
                *(column[at] for column in each.more.values()),
            ]
            for each in self.series
            for at in np.flatnonzero(np.isfinite(each.curve.y) | (self.form == "bars")).tolist()
        ]
        return table_of(self.title, header, rows)

    def _height(self, value: float, digits: int = 1) -> str:
        return percent(value, digits) if self.percent else f"{value:.4g}" if math.isfinite(value) else "unknown"

    def _place_names(self) -> Iterable[str]:
        return () if self.form == "bars" else (self.x_label,) if self.costs == ("",) else COSTS

    def _places(self, x: Mapping[str, Floats], at: int) -> list[str]:
        forms = {"rollouts": count, "tokens": count, "hours": hours}
        if "" in x:
            return [percent(x[""][at], 1) if self.x_percent else count(x[""][at])]
        return [forms[key](float(x[key][at]) if key in x else None) for key in COSTS] if x else []


def bar(name: str, style: int, interval: Iterable[float | Floats], more: Mapping[str, str]) -> ChartSeries:
    """Return a bar: its value, and the low and the high end of its ``interval``. ``more`` has cells of its row."""
    curve = Curve({}, *(np.array([value], float) for value in interval))
    return ChartSeries(name, style, curve, {key: (text,) for key, text in more.items()})


def calibration_chart(
    key: str, title: str, text: str, series: Iterable[ChartSeries], labels: Sequence[str], notes: Iterable[str] = ()
) -> Chart:
    """Return the chart of shares against shares. ``labels`` are those of the places, the heights and the series."""
    x_label, y_label, label = labels
    return Chart(
        key, title, text, "lines", tuple(series), x_label, y_label, label, unit=True, diagonal=True, x_percent=True,
        notes=tuple(notes),
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
