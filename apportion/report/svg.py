"""Charts as SVG: lines with bands, stacks with patterns, points with intervals, and bars. Colours are left to CSS.

Series differ in colour, dashes, marker and a label at their end, so that no colour is needed to tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from apportion.report.axes import Scale, short, short_percent, span, ticks
from apportion.report.charts import Chart, ChartSeries
from apportion.report.curves import COSTS
from apportion.report.style import STYLES
from apportion.types import Floats, Mask

MARKS = 7
"""Markers on a line with many points."""

LETTER = 7.2
"""Mean width of a letter in pixels, at the size of the labels, in a wide font."""

LINE_HEIGHT = 14.0
MARKERS = (
    "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0Z",  # circle
    "M-3.2 -3.2H3.2V3.2H-3.2Z",  # square
    "M0 -4.4L4.4 0L0 4.4L-4.4 0Z",  # diamond
    "M0 -4.2L4 3.2H-4Z",  # triangle up
    "M0 4.2L4 -3.2H-4Z",  # triangle down
    "M-1.3 -4H1.3V-1.3H4V1.3H1.3V4H-1.3V1.3H-4V-1.3H-1.3Z",  # plus
    "M-4.2 0L3.2 -4V4Z",  # triangle left
    "M4.2 0L-3.2 -4V4Z",  # triangle right
)


@dataclass(frozen=True)
class Canvas:
    """The size of a drawing, and of its margins, in pixels."""

    width: float
    height: float
    right: float
    left: float = 46
    top: float = 24
    bottom: float = 40
    x_ticks: int = 6

    @property
    def letters(self) -> int:
        """Letters of a label that fit into the right margin."""
        return int((self.right - 14) / LETTER)


WIDE = Canvas(width=640, height=320, right=136)
NARROW = Canvas(width=340, height=270, right=84, x_ticks=4)


def draw(chart: Chart, cost: str, canvas: Canvas, id: str) -> str:
    """Return the chart over one of its costs as an SVG element, whose title and description have ids from ``id``."""
    height, parts = _bars(chart, canvas) if chart.form == "bars" else (canvas.height, _plot(chart, cost, canvas))
    over = f", over {COSTS[cost]}" if cost else ""
    return (
        f'<svg role="img" aria-labelledby="{id}-t {id}-d" viewBox="0 0 {canvas.width:g} {height:g}" '
        f'width="{canvas.width:g}" height="{height:g}">'
        f'<title id="{id}-t">{escape(chart.title + over)}</title>'
        f'<desc id="{id}-d">{escape(f"{chart.text} {chart.detail}".strip())}</desc>{"".join(parts)}</svg>'
    )


def swatch(style: int) -> str:
    """Return a sample of the line and marker of a run, for the table of runs."""
    return (
        '<svg class="swatch" aria-hidden="true" viewBox="0 0 44 12" width="44" height="12">'
        f'<path class="line {_classes(style)}" d="M1 6H43"/>{_marker(style, 22, 6)}</svg>'
    )


def patterns() -> str:
    """Return the patterns of stacked layers, which are defined once on a page."""
    lines = (
        '<path d="M0 0H8V8H0Z"/>',
        '<path d="M-2 2L2 -2M0 8L8 0M6 10L10 6"/>',
        '<path d="M0 4H8"/>',
        '<path d="M2 2h.1M6 6h.1"/>',
        '<path d="M4 0V8"/>',
        "",
    )
    made = "".join(
        f'<pattern id="layer-{at}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<rect class="layer-{at}" width="8" height="8"/><g class="hatch">{line if at else ""}</g></pattern>'
        for at, line in enumerate(lines)
    )
    return f'<svg class="patterns" aria-hidden="true" width="0" height="0"><defs>{made}</defs></svg>'


def short_names(names: Sequence[str]) -> list[str]:
    """Return the names without what all begin with up to ": ".

    >>> short_names(["hard: vip", "hard: uniform"]), short_names(["a: b", "c"])
    (['vip', 'uniform'], ['a: b', 'c'])
    """
    heads = {name.rpartition(": ")[0] for name in names}
    return [name.rpartition(": ")[2] for name in names] if len(heads) == 1 and len(names) > 1 else list(names)


@dataclass(frozen=True)
class _Plot:
    """The scales of a chart over one of its costs, and the series that are known over it."""

    chart: Chart
    cost: str
    shown: Sequence[ChartSeries]
    x: Scale
    y: Scale
    letters: int

    def places(self, each: ChartSeries) -> Floats:
        """Return the places of the values of a series [B]."""
        return self.x.of(each.curve.x[self.cost])


def _plot(chart: Chart, cost: str, canvas: Canvas) -> Iterator[str]:
    shown = [each for each in chart.series if cost in each.curve.x]
    heights = [values for each in shown for values in (each.curve.y, each.curve.low, each.curve.high)]
    low, high = (0.0, 1.0) if chart.unit else span(np.concatenate(heights), chart.from_zero)
    if chart.percent:
        low, high = max(low, 0.0), min(high, 1.0)
    widest = max((float(each.curve.x[cost].max(initial=0)) for each in shown), default=0.0)
    x = Scale(0.0, 1.0 if chart.x_percent else widest or 1.0, canvas.left, canvas.width - canvas.right)
    y = Scale(low, max(high, low + 1e-9), canvas.height - canvas.bottom, canvas.top)
    plot = _Plot(chart, cost, shown, x, y, canvas.letters)
    yield from _grid(plot, canvas)
    if chart.diagonal:
        yield _path("diagonal", _through(x.of(np.array([0.0, 1.0])), y.of(np.array([0.0, 1.0]))))
    if chart.form == "stack":
        yield from _stack(plot)
        return
    for each in shown:
        yield _band(plot, each) if chart.form == "lines" else _whiskers(plot, each)
    for each in shown:
        yield _path(f"line {_classes(each.style)}", _through(plot.places(each), y.of(each.curve.y)))
        yield from _marks(plot, each)
    yield from _end_labels(plot)


def _grid(plot: _Plot, canvas: Canvas) -> Iterator[str]:
    chart, x, y = plot.chart, plot.x, plot.y
    for value in ticks(y.low, y.high, 6):
        height = y.of(value)
        yield _path("grid", f"M{x.start:g} {height:.1f}H{x.end:g}")
        yield _words("tick", x.start - 6, height + 4, _short(value, chart.percent), "end")
    for value in ticks(x.low, x.high, canvas.x_ticks):
        place = x.of(value)
        yield _path("axis", f"M{place:.1f} {y.start:g}v4")
        yield _words("tick", place, y.start + 17, _short(value, chart.x_percent), "middle")
    yield _path("axis", f"M{x.start:g} {y.start:g}H{x.end:g}")
    yield _words("label", (x.start + x.end) / 2, canvas.height - 5, COSTS.get(plot.cost, chart.x_label), "middle")
    yield _words("label", 2, 12, chart.y_label)


def _stack(plot: _Plot) -> Iterator[str]:
    if not plot.shown:
        return
    x, y = plot.x, plot.y
    places = plot.shown[0].curve.x[plot.cost]
    if len(places) == 1:  # one stretch is drawn as a column
        places = np.r_[0.0, places]
    at, floor, ends = x.of(places), np.zeros(len(places)), []
    for layer in plot.shown:
        top = floor + np.resize(layer.curve.y, len(places))
        outline = _through(np.r_[at, at[::-1]], np.r_[y.of(top), y.of(floor)[::-1]])
        title = f"<title>{escape(layer.name)}</title>"
        yield f'<path class="layer" fill="url(#layer-{layer.style})" d="{outline}Z">{title}</path>'
        ends.append(y.of((top[-1] + floor[-1]) / 2))
        floor = top
    yield _words("label", x.end + 11, 12, plot.chart.layer_label)
    for layer, height, label in zip(plot.shown, ends, _apart(ends, y), strict=True):
        yield _path("leader", f"M{x.end + 1:g} {height:.1f}L{x.end + 9:g} {label:.1f}")
        yield _words("name", x.end + 11, label + 4, _cut(layer.name, plot.letters))


def _band(plot: _Plot, each: ChartSeries) -> str:
    """Return the band between the ends of the intervals, in one area for each stretch of known ones."""
    at, low, high = plot.places(each), plot.y.of(each.curve.low), plot.y.of(each.curve.high)
    areas = [
        f"{_through(np.r_[at[part], at[part][::-1]], np.r_[high[part], low[part][::-1]])}Z"
        for part in _runs(np.isfinite(low) & np.isfinite(high))
    ]
    return _path(f"band f{each.style % STYLES}", "".join(areas)) if areas else ""


def _whiskers(plot: _Plot, each: ChartSeries) -> str:
    ends = zip(plot.places(each), plot.y.of(each.curve.high), plot.y.of(each.curve.low), strict=True)
    d = "".join(f"M{place:.1f} {top:.1f}V{end:.1f}" for place, top, end in ends if np.isfinite(top - end))
    return _path(f"whisker {_classes(each.style)}", d) if d else ""


def _marks(plot: _Plot, each: ChartSeries) -> Iterator[str]:
    """Yield some markers of a line, each with its numbers. Lines have theirs at different places."""
    x, y = each.curve.x[plot.cost], each.curve.y
    known = np.flatnonzero(np.isfinite(y))
    if len(known) > 3 * MARKS:
        shares = (np.arange(MARKS) + 0.15 + 0.7 * (each.style % STYLES) / STYLES) / MARKS
        known = known[(shares * len(known)).astype(int)]
    for at in known:
        where = f"{x[at]:.1%}" if plot.chart.x_percent else f"{x[at]:,.4g}" if x[at] < 1000 else f"{x[at]:,.0f}"
        value = f"{y[at]:.1%}" if plot.chart.percent else f"{y[at]:.4g}"
        text = f"{each.name}: {value} at {where} {COSTS.get(plot.cost, plot.chart.x_label)}"
        yield _marker(each.style, plot.x.of(x[at]), plot.y.of(y[at]), text)


def _end_labels(plot: _Plot) -> Iterator[str]:
    """Yield the names of the lines beside their ends."""
    found = []
    for each, name in zip(plot.shown, short_names([each.name for each in plot.shown]), strict=True):
        known = np.flatnonzero(np.isfinite(each.curve.y))
        if len(known):
            height = plot.y.of(each.curve.y[known[-1]])
            found.append((height, plot.places(each)[known[-1]], each.style % STYLES, name))
    end = plot.x.end
    for (height, place, style, name), label in zip(found, _apart([row[0] for row in found], plot.y), strict=True):
        yield _path(f"leader s{style}", f"M{place + 2:.1f} {height:.1f}L{end + 9:g} {label:.1f}")
        yield _words(f"name t{style}", end + 11, label + 4, _cut(name, plot.letters))


def _bars(chart: Chart, canvas: Canvas) -> tuple[float, list[str]]:
    """Return the height, and a row for each series: its name, a dot, its interval, and its value as text."""
    values = np.concatenate([np.r_[0.0, each.curve.y, each.curve.low, each.curve.high] for each in chart.series])
    low, high = span(values)
    names = short_names([each.name for each in chart.series])
    longest = max(map(len, names))
    beside = longest <= 24  # else names have lines of their own
    row_height = 26.0 if beside else 44.0
    bottom = row_height * len(names) + 14
    margin = min(longest * LETTER + 16, 0.45 * canvas.width) if beside else 12.0
    letters = int(((margin - 12) if beside else canvas.width - 20) / LETTER)
    x = Scale(low, max(high, low + 1e-9), margin, canvas.width - 60)
    drawn = []
    for value in ticks(x.low, x.high, canvas.x_ticks - 1):
        place = x.of(value)
        drawn.append(_path("axis" if value == 0 else "grid", f"M{place:.1f} 6V{bottom:g}"))
        drawn.append(_words("tick", place, bottom + 16, _short(value, chart.percent), "middle"))
    for row, (each, name) in enumerate(zip(chart.series, names, strict=True), start=1):
        height, value = row_height * row - 8, float(each.curve.y[0])
        drawn.append(_words("name", *((2, height + 4) if beside else (16, height - 14)), _cut(name, letters)))
        if np.isfinite(each.curve.low[0]):
            ends = x.of(each.curve.low[0]), x.of(each.curve.high[0])
            drawn.append(_path(f"whisker {_classes(each.style)}", f"M{ends[0]:.1f} {height}H{ends[1]:.1f}"))
        drawn.append(_marker(each.style, x.of(value), height))
        text = _short(round(value, 3) if chart.percent else value, chart.percent)
        drawn.append(_words("tick", canvas.width - 4, height + 4, text, "end"))
    drawn.append(_words("label", (x.start + x.end) / 2, bottom + 33, chart.x_label, "middle"))
    return bottom + 38, drawn


def _marker(style: int, x: float, y: float, text: str = "") -> str:
    title = f"<title>{escape(text)}</title>" if text else ""
    shape = MARKERS[style % STYLES]
    return f'<path class="mark s{style % STYLES}" transform="translate({x:.1f} {y:.1f})" d="{shape}">{title}</path>'


def _classes(style: int) -> str:
    """Return the classes that decide the colour and dashes of a run."""
    return f"s{style % STYLES} d{(style + style // STYLES) % 4}"


def _path(kind: str, d: str) -> str:
    return f'<path class="{kind}" d="{d}"/>'


def _words(kind: str, x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(value: float, is_share: bool) -> str:
    return short_percent(value) if is_share else short(value)


def _through(x: Floats, y: Floats) -> str:
    """Return the path through the points, broken where one is not finite."""
    return "".join(
        "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x[part], y[part], strict=True))
        for part in _runs(np.isfinite(x) & np.isfinite(y))
    )


def _runs(whole: Mask) -> Iterator[slice]:
    """Yield the stretches of true values."""
    edges = np.flatnonzero(np.diff(np.r_[False, whole, False]))
    yield from (slice(begin, end) for begin, end in edges.reshape(-1, 2))


def _apart(heights: Sequence[float], y: Scale) -> Floats:
    """Return ``heights`` moved apart, so that a line of text fits at each, in their order and within the axis."""
    order, room = np.argsort(heights, kind="stable"), LINE_HEIGHT * np.arange(len(heights))
    moved = np.maximum.accumulate(np.asarray(heights, float)[order] - room) + room
    moved = np.minimum(moved, y.start - room[::-1])
    found = np.empty(len(order))
    found[order] = np.maximum(moved, y.end - LINE_HEIGHT)
    return found


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"{text[: max(letters - 1, 1)]}…"
