"""Charts as SVG: lines with bands. Colours are left to CSS.

Series differ in colour, dashes and a label at their end, so that no colour is needed to tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from apportion.report.axes import Scale, short, short_percent, span, ticks
from apportion.report.charts import Chart, ChartSeries
from apportion.report.curves import COSTS
from apportion.report.style import STYLES
from apportion.types import Floats, Mask

MARKS = 21
"""Most points of a line that is drawn with markers."""

LETTER = 7.2
"""Mean width of a letter in pixels, at the size of the labels, in a wide font."""

LINE_HEIGHT = 14.0
WIDTH, HEIGHT = 600.0, 310.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 136.0, 24.0, 40.0
"""The size of a drawing, and of its margins, in pixels."""


def draw(chart: Chart, cost: str, id: str) -> str:
    """Return the chart over one of its costs as an SVG element, whose title and description have ids from ``id``."""
    over = f", over {COSTS[cost]}" if cost else ""
    return (
        f'<svg class="chart" role="img" aria-labelledby="{id}-t {id}-d" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" '
        f'width="{WIDTH:g}" height="{HEIGHT:g}">'
        f'<title id="{id}-t">{escape(chart.title + over)}</title>'
        f'<desc id="{id}-d">{escape(chart.text)}</desc>{"".join(_lines(chart, cost))}</svg>'
    )


def short_names(names: Sequence[str]) -> list[str]:
    """Return the names without their common beginning, up to ": ".

    >>> short_names(["hard: vip", "hard: uniform"]), short_names(["a: b", "c"])
    (['vip', 'uniform'], ['a: b', 'c'])
    """
    heads = {name.rpartition(": ")[0] for name in names}
    return [name.rpartition(": ")[2] for name in names] if len(heads) == 1 and len(names) > 1 else list(names)


def _lines(chart: Chart, cost: str) -> Iterator[str]:
    """Yield the axes, and each series that is known over ``cost``: its band, its line, its markers and its name."""
    shown = [each for each in chart.series if cost in each.curve.x]
    heights = [values for each in shown for values in (each.curve.y, each.curve.low, each.curve.high)]
    shares = not (cost or chart.numbers)
    low, high = (0.0, 1.0) if shares else span(np.concatenate(heights), chart.from_zero)
    if chart.percent:
        low, high = max(low, 0.0), min(high, 1.0)
    widest = max(float(each.curve.x[cost].max(initial=0)) for each in shown)
    x = Scale(0.0, (1.0 if shares else widest) or 1.0, LEFT, WIDTH - RIGHT)
    y = Scale(low, max(high, low + 1e-9), HEIGHT - BOTTOM, TOP)
    for value in ticks(y.low, y.high, 6):
        height = y.of(value)
        yield _path("grid", f"M{x.start:g} {height:.1f}H{x.end:g}")
        yield _words("tick", x.start - 6, height + 4, _short(value, chart.percent), "end")
    for value in ticks(x.low, x.high, 6):
        place = x.of(value)
        yield _path("axis", f"M{place:.1f} {y.start:g}v4")
        yield _words("tick", place, y.start + 17, _short(value, shares), "middle")
    yield _path("axis", f"M{x.start:g} {y.start:g}H{x.end:g}")
    yield _words("label", (x.start + x.end) / 2, HEIGHT - 5, COSTS.get(cost, chart.x_label), "middle")
    yield _words("label", 2, 12, chart.y_label)
    if shares:
        yield _path("diagonal", _through(x.of(np.array([0.0, 1.0])), y.of(np.array([0.0, 1.0]))))
    yield from (_band(each, x.of(each.curve.x[cost]), y) for each in shown)
    ends = []
    for each, name in zip(shown, short_names([each.name for each in shown]), strict=True):
        places, heights_of = x.of(each.curve.x[cost]), y.of(each.curve.y)
        yield _path(f"line {_classes(each.style)}", _through(places, heights_of))
        known = np.flatnonzero(np.isfinite(each.curve.y))
        yield from (_marker(each.style, places[at], heights_of[at]) for at in known if len(known) <= MARKS)
        ends += [(heights_of[known[-1]], places[known[-1]], each.style % STYLES, name)] if len(known) else []
    for (height, place, style, name), label in zip(ends, _apart([end[0] for end in ends], y), strict=True):
        yield _path(f"leader s{style}", f"M{place + 2:.1f} {height:.1f}L{x.end + 9:g} {label:.1f}")
        yield _words(f"name t{style}", x.end + 11, label + 4, _cut(name, RIGHT - 14))


def _band(each: ChartSeries, at: Floats, y: Scale) -> str:
    """Return the band between the ends of the intervals, one area per stretch of known points."""
    low, high = y.of(each.curve.low), y.of(each.curve.high)
    areas = [
        f"{_through(np.r_[at[part], at[part][::-1]], np.r_[high[part], low[part][::-1]])}Z"
        for part in _runs(np.isfinite(low) & np.isfinite(high))
    ]
    return _path(f"band f{each.style % STYLES}", "".join(areas)) if areas else ""


def _marker(style: int, x: float, y: float) -> str:
    return f'<circle class="mark s{style % STYLES}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'


def _classes(style: int) -> str:
    """Return the classes that decide the colour and dashes of a run."""
    return f"s{style % STYLES} d{(style + style // STYLES) % 4}"


def _path(kind: str, d: str) -> str:
    return f'<path class="{kind}" d="{d}"/>'


def _words(kind: str, x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>' if text else ""


def _short(value: float, is_share: bool) -> str:
    return short_percent(value) if is_share else short(value)


def _through(x: Floats, y: Floats) -> str:
    """Return the path through the points. It is interrupted where a point is not finite."""
    return "".join(
        "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x[part], y[part], strict=True))
        for part in _runs(np.isfinite(x) & np.isfinite(y))
    )


def _runs(whole: Mask) -> Iterator[slice]:
    """Yield the start and end of each run of true values."""
    edges = np.flatnonzero(np.diff(np.r_[False, whole, False]))
    yield from (slice(begin, end) for begin, end in edges.reshape(-1, 2))


def _apart(heights: Sequence[float], y: Scale) -> Floats:
    """Return ``heights`` moved apart so that each has room for a line of text, in their order and within the axis."""
    order, room = np.argsort(heights, kind="stable"), LINE_HEIGHT * np.arange(len(heights))
    moved = np.maximum.accumulate(np.asarray(heights, float)[order] - room) + room
    moved = np.minimum(moved, y.start - room[::-1])
    found = np.empty(len(order))
    found[order] = np.maximum(moved, y.end - LINE_HEIGHT)
    return found


def _cut(text: str, room: float) -> str:
    """Return ``text``, shortened to a number of pixels."""
    letters = int(room / LETTER)
    return text if len(text) <= letters else f"{text[: letters - 1]}…"
