"""Charts as SVG: lines with bands, stacks with patterns, points with intervals, and bars. Colours are left to CSS.

Series differ in colour, dashes, marker and a label at their end, so that no colour is needed to tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

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
    body = "".join(_bars(chart, canvas) if chart.form == "bars" else _plot(chart, cost, canvas))
    height = _bars_height(chart) if chart.form == "bars" else canvas.height
    over = f", over {COSTS[cost]}" if cost else ""
    return (
        f'<svg role="img" aria-labelledby="{id}-t {id}-d" viewBox="0 0 {canvas.width:g} {height:g}" '
        f'width="{canvas.width:g}" height="{height:g}">'
        f'<title id="{id}-t">{escape(chart.title + over)}</title>'
        f'<desc id="{id}-d">{escape(f"{chart.text} {chart.detail}".strip())}</desc>{body}</svg>'
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


def _plot(chart: Chart, cost: str, canvas: Canvas) -> Iterator[str]:
    shown = [each for each in chart.series if cost in each.curve.x]
    x, y = _scales(chart, shown, cost, canvas)
    yield from _grid(chart, cost, x, y, canvas)
    if chart.diagonal:
        ends = np.array([0.0, 1.0])
        yield f'<path class="diagonal" d="{_path(x.of(ends), y.of(ends))}"/>'
    if chart.form == "stack":
        yield from _stack(chart, shown, cost, x, y, canvas)
        return
    for each in shown:
        yield _interval(each, cost, x, y) if chart.form == "lines" else _whiskers(each, cost, x, y)
    for each in shown:
        places, heights = x.of(each.curve.x[cost]), y.of(each.curve.y)
        yield f'<path class="line {_classes(each.style)}" d="{_path(places, heights)}"/>'
        yield from _marks(chart, each, cost, places, heights)
    yield from _end_labels(shown, cost, x, y, canvas)


def _scales(chart: Chart, shown: Sequence[ChartSeries], cost: str, canvas: Canvas) -> tuple[Scale, Scale]:
    places = np.concatenate([each.curve.x[cost] for each in shown])
    heights = [values for each in shown for values in (each.curve.y, each.curve.low, each.curve.high)]
    low, high = (0.0, 1.0) if chart.unit else span(np.concatenate(heights), chart.from_zero)
    if chart.percent:
        low, high = max(low, 0.0), min(high, 1.0)
    x_low, x_high = (0.0, 1.0) if chart.x_percent else (0.0, float(places.max(initial=0)) or 1.0)
    x = Scale(x_low, x_high, canvas.left, canvas.width - canvas.right)
    return x, Scale(low, max(high, low + 1e-9), canvas.height - canvas.bottom, canvas.top)


def _grid(chart: Chart, cost: str, x: Scale, y: Scale, canvas: Canvas) -> Iterator[str]:
    for value in ticks(y.low, y.high, 6):
        height = float(y.of(value))
        text = short_percent(value) if chart.percent else short(value)
        yield f'<path class="grid" d="M{x.start:g} {height:.1f}H{x.end:g}"/>'
        yield f'<text class="tick" x="{x.start - 6:g}" y="{height + 4:.1f}" text-anchor="end">{text}</text>'
    for value in ticks(x.low, x.high, canvas.x_ticks):
        place = float(x.of(value))
        text = short_percent(value) if chart.x_percent else short(value)
        yield f'<path class="axis" d="M{place:.1f} {y.start:g}v4"/>'
        yield f'<text class="tick" x="{place:.1f}" y="{y.start + 17:g}" text-anchor="middle">{text}</text>'
    yield f'<path class="axis" d="M{x.start:g} {y.start:g}H{x.end:g}"/>'
    middle, label = (x.start + x.end) / 2, COSTS.get(cost, chart.x_label)
    yield f'<text class="label" x="{middle:g}" y="{canvas.height - 5:g}" text-anchor="middle">{escape(label)}</text>'
    yield f'<text class="label" x="2" y="12">{escape(chart.y_label)}</text>'


def _stack(chart: Chart, layers: Sequence[ChartSeries], cost: str, x: Scale, y: Scale, canvas: Canvas) -> Iterator[str]:
    if not layers:
        return
    places = layers[0].curve.x[cost]
    if len(places) == 1:  # one stretch is drawn as a column
        places = np.r_[0.0, places]
    tops = np.cumsum([np.resize(layer.curve.y, len(places)) for layer in layers], axis=0)
    floor = np.zeros(len(places))
    ends = []
    at = x.of(places)
    for layer, top in zip(layers, tops, strict=True):
        outline = _path(np.r_[at, at[::-1]], np.r_[y.of(top), y.of(floor)[::-1]])
        title = f"<title>{escape(layer.name)}</title>"
        yield f'<path class="layer" fill="url(#layer-{layer.style})" d="{outline}Z">{title}</path>'
        ends.append(float(y.of((top[-1] + floor[-1]) / 2)))
        floor = top
    yield f'<text class="label" x="{x.end + 11:g}" y="12">{escape(chart.layer_label)}</text>'
    for layer, height, label in zip(layers, ends, _apart(ends, y), strict=True):
        yield f'<path class="leader" d="M{x.end + 1:g} {height:.1f}L{x.end + 9:g} {label:.1f}"/>'
        text = escape(_cut(layer.name, canvas.letters))
        yield f'<text class="name" x="{x.end + 11:g}" y="{label + 4:.1f}">{text}</text>'


def _interval(each: ChartSeries, cost: str, x: Scale, y: Scale) -> str:
    """Return the band between the ends of the intervals, in one area for each stretch of known ones."""
    known = np.isfinite(each.curve.low) & np.isfinite(each.curve.high)
    areas = []
    for part in _runs(known):
        at = x.of(each.curve.x[cost][part])
        low, high = y.of(each.curve.low[part]), y.of(each.curve.high[part])
        areas.append(f"{_path(np.r_[at, at[::-1]], np.r_[high, low[::-1]])}Z")
    return f'<path class="band f{each.style % STYLES}" d="{"".join(areas)}"/>' if areas else ""


def _whiskers(each: ChartSeries, cost: str, x: Scale, y: Scale) -> str:
    known = np.isfinite(each.curve.low) & np.isfinite(each.curve.high)
    at, low, high = (
        scale.of(values[known])
        for scale, values in ((x, each.curve.x[cost]), (y, each.curve.low), (y, each.curve.high))
    )
    d = "".join(f"M{place:.1f} {top:.1f}V{end:.1f}" for place, top, end in zip(at, high, low, strict=True))
    return f'<path class="whisker {_classes(each.style)}" d="{d}"/>' if d else ""


def _marks(chart: Chart, each: ChartSeries, cost: str, places: Floats, heights: Floats) -> Iterator[str]:
    """Yield some markers of a line, each with its numbers. Lines have theirs at different places."""
    known = np.flatnonzero(np.isfinite(heights))
    if len(known) > 3 * MARKS:
        shares = (np.arange(MARKS) + 0.15 + 0.7 * (each.style % STYLES) / STYLES) / MARKS
        known = known[(shares * len(known)).astype(int)]
    for at in known:
        value = each.curve.y[at]
        place = each.curve.x[cost][at]
        where = f"{place:.1%}" if chart.x_percent else f"{place:,.4g}" if place < 1000 else f"{place:,.0f}"
        text = f"{each.name}: {value:.1%}" if chart.percent else f"{each.name}: {value:.4g}"
        yield _marker(each.style, places[at], heights[at], f"{text} at {where} {COSTS.get(cost, chart.x_label)}")


def _end_labels(shown: Sequence[ChartSeries], cost: str, x: Scale, y: Scale, canvas: Canvas) -> Iterator[str]:
    """Yield the names of the lines beside their ends."""
    found = []
    for each, name in zip(shown, short_names([each.name for each in shown]), strict=True):
        known = np.flatnonzero(np.isfinite(each.curve.y))
        if len(known):
            found.append((float(y.of(each.curve.y[known[-1]])), float(x.of(each.curve.x[cost][known[-1]])), each, name))
    for (height, place, each, name), label in zip(found, _apart([row[0] for row in found], y), strict=True):
        text = escape(_cut(name, canvas.letters))
        colour = f"s{each.style % STYLES}"
        yield f'<path class="leader {colour}" d="M{place + 2:.1f} {height:.1f}L{x.end + 9:g} {label:.1f}"/>'
        yield f'<text class="name t{each.style % STYLES}" x="{x.end + 11:g}" y="{label + 4:.1f}">{text}</text>'


def _bars(chart: Chart, canvas: Canvas) -> Iterator[str]:
    """Yield a row for each series: its name, a dot, its interval, and its value as text."""
    values = np.concatenate([np.r_[0.0, each.curve.y, each.curve.low, each.curve.high] for each in chart.series])
    low, high = span(values)
    names = short_names([each.name for each in chart.series])
    beside, row_height = not _has_long_names(chart), _row_height(chart)
    margin = min(max(map(len, names)) * LETTER + 16, 0.45 * canvas.width) if beside else 12.0
    x = Scale(low, max(high, low + 1e-9), margin, canvas.width - 60)
    bottom = _bars_height(chart) - 38
    for value in ticks(x.low, x.high, canvas.x_ticks - 1):
        place = float(x.of(value))
        text = short_percent(value) if chart.percent else short(value)
        yield f'<path class="{"axis" if value == 0 else "grid"}" d="M{place:.1f} 6V{bottom:g}"/>'
        yield f'<text class="tick" x="{place:.1f}" y="{bottom + 16:g}" text-anchor="middle">{text}</text>'
    letters = int(((x.start - 12) if beside else canvas.width - 20) / LETTER)
    for row, (each, name) in enumerate(zip(chart.series, names, strict=True)):
        height, curve = row_height * (row + 1) - 8, each.curve
        place = float(x.of(curve.y[0]))
        text = escape(_cut(name, letters))
        x_of_name, y_of_name = (2, height + 4) if beside else (16, height - 14)
        yield f'<text class="name" x="{x_of_name}" y="{y_of_name:g}">{text}</text>'
        if np.isfinite(curve.low[0]):
            ends = x.of(np.array([curve.low[0], curve.high[0]]))
            yield f'<path class="whisker {_classes(each.style)}" d="M{ends[0]:.1f} {height}H{ends[1]:.1f}"/>'
        yield _marker(each.style, place, height)
        text = short_percent(round(curve.y[0], 3)) if chart.percent else short(curve.y[0])
        yield f'<text class="tick" x="{canvas.width - 4:g}" y="{height + 4}" text-anchor="end">{text}</text>'
    middle = (x.start + x.end) / 2
    yield f'<text class="label" x="{middle:g}" y="{bottom + 33:g}" text-anchor="middle">{escape(chart.x_label)}</text>'


def _bars_height(chart: Chart) -> float:
    return _row_height(chart) * len(chart.series) + 52


def _row_height(chart: Chart) -> float:
    return 44.0 if _has_long_names(chart) else 26.0


def _has_long_names(chart: Chart) -> bool:
    """Return whether the names of bars need lines of their own."""
    return max(len(name) for name in short_names([each.name for each in chart.series])) > 24


def _marker(style: int, x: float, y: float, text: str = "") -> str:
    title = f"<title>{escape(text)}</title>" if text else ""
    shape = MARKERS[style % STYLES]
    return f'<path class="mark s{style % STYLES}" transform="translate({x:.1f} {y:.1f})" d="{shape}">{title}</path>'


def _classes(style: int) -> str:
    """Return the classes that decide the colour and dashes of a run."""
    return f"s{style % STYLES} d{(style + style // STYLES) % 4}"


def _path(x: Floats, y: Floats) -> str:
    """Return the path through the points, broken where one is not finite."""
    whole = np.isfinite(x) & np.isfinite(y)
    return "".join(
        "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x[part], y[part], strict=True)) for part in _runs(whole)
    )


def _runs(whole: Mask) -> Iterator[slice]:
    """Yield the stretches of true values."""
    edges = np.flatnonzero(np.diff(np.r_[False, whole, False]))
    yield from (slice(begin, end) for begin, end in zip(edges[::2], edges[1::2], strict=True))


def _apart(heights: Sequence[float], y: Scale) -> list[float]:
    """Return ``heights`` moved apart, so that a line of text fits at each, in their order and within the axis."""
    order = np.argsort(heights, kind="stable")
    moved = np.array([heights[at] for at in order], float)
    top, bottom = y.end, y.start
    for first, second in pairwise(range(len(moved))):
        moved[second] = max(moved[second], moved[first] + LINE_HEIGHT)
    if len(moved) and moved[-1] > bottom:
        moved[-1] = bottom
        for second, first in pairwise(reversed(range(len(moved)))):
            moved[first] = min(moved[first], moved[second] - LINE_HEIGHT)
    found = [0.0] * len(moved)
    for place, at in enumerate(order):
        found[at] = max(float(moved[place]), top - LINE_HEIGHT)
    return found


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"{text[: max(letters - 1, 1)]}…"
