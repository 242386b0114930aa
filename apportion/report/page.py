"""A report as one HTML page, which loads nothing and runs no script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape

from apportion.report.charts import Chart, ReportTable
from apportion.report.curves import COSTS
from apportion.report.report import RunReport
from apportion.report.style import stylesheet
from apportion.report.svg import NARROW, WIDE, draw, patterns, swatch

LONG, LONG_CELL = 60, ' class="long"'
"""A cell with more letters than this may take several lines."""

THEMES = {"auto": "as the system", "light": "light", "dark": "dark"}


def page_of(report: RunReport, refresh: float | None = None, now: datetime | None = None) -> str:
    """Return the page. With ``refresh`` it loads itself again after so many seconds. ``now`` is the time at its foot.

    All text is escaped, and a policy in the page forbids scripts, loads, forms and other styles than its own.
    """
    known = tuple(key for key in COSTS if any(key in chart.costs for chart in report.charts))
    style = stylesheet(known)
    allowed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{allowed}'; base-uri 'none'; form-action 'none'"
    seconds = None if refresh is None else max(round(refresh), 1)
    again = "" if seconds is None else f'<meta http-equiv="refresh" content="{seconds}">'
    stamp = (now or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M:%S UTC")
    title = "Where the rollouts went"
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">{again}',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">',
            f"<title>{title}: {escape(', '.join(report.names))}</title><style>{style}</style></head><body>",
            '<a class="skip" href="#charts">Skip to the charts</a>',
            f"<header><h1>{title}</h1>",
            '<ul class="summary">',
            *(_summary(report, at) for at in range(len(report.names))),
            "</ul>",
            f'<p class="note">{" ".join(_text(note) for note in report.notes)}</p>' if report.notes else "",
            "</header><main>",
            *(_overview(table, report) for table in report.overviews),
            f'<div class="switches">{_costs(report, known)}{_themes()}</div>',
            patterns(),
            '<div class="grid-of-charts" id="charts" tabindex="-1">',
            *(_figure(chart, number) for number, chart in enumerate(report.charts)),
            "</div>",
            *(_folded(table, len(report.tables) == 1) for table in report.tables),
            f"</main><footer>Made by apportion report, {stamp}."
            + ("" if seconds is None else f" This page is made again and loads itself every {seconds} seconds.")
            + "</footer></body></html>\n",
        ]
    )


def _summary(report: RunReport, at: int) -> str:
    decisions = "".join(f"<li>{_text(each)}</li>" for each in report.decisions[at])
    more = f'<ul class="decisions">{decisions}</ul>' if decisions else ""
    return f"<li><strong>{_text(report.names[at])}</strong>: {_text(report.summaries[at])}{more}</li>"


def _overview(table: ReportTable, report: RunReport) -> str:
    places = {name: at for at, name in enumerate(report.names)}
    return _table(table, table.caption, "overview stacks", [swatch(places[row[0]]) for row in table.rows])


def _costs(report: RunReport, known: tuple[str, ...]) -> str:
    """Return the switch between costs. Unknown ones are shown and cannot be chosen."""
    if not any(chart.form in ("lines", "stack") for chart in report.charts):
        return ""
    choices = [
        _choice("cost", key, words, key == known[0])
        if key in known
        else f'<label class="off"><input type="radio" name="cost" disabled>{words} (not recorded)</label>'
        for key, words in COSTS.items()
    ]
    return f"<fieldset><legend>Against</legend>{''.join(choices)}</fieldset>"


def _themes() -> str:
    choices = "".join(_choice("theme", key, words, key == "auto") for key, words in THEMES.items())
    return f"<fieldset><legend>Colours</legend>{choices}</fieldset>"


def _choice(name: str, key: str, words: str, chosen: bool) -> str:
    checked = " checked" if chosen else ""
    return f'<label><input type="radio" name="{name}" id="{name}-{key}" value="{key}"{checked}>{words}</label>'


def _figure(chart: Chart, number: int) -> str:
    drawings = "".join(_drawings(chart, number))
    notes = "".join(f'<p class="note">{_text(note)}</p>' for note in chart.notes)
    caption = f"<figcaption><h2>{_text(chart.title)}</h2><p>{_text(chart.text)}</p></figcaption>"
    numbers = f"<details><summary>Numbers of this chart</summary>{_table(chart.table, chart.title)}</details>"
    return f'<figure id="{escape(chart.key)}">{caption}{drawings}{notes}{numbers}</figure>'


def _folded(table: ReportTable, is_open: bool) -> str:
    heading = f"<summary><h2>{_text(table.caption)}</h2></summary>"
    content = heading + _table(table, table.caption, "stacks")
    return f'<details class="section"{" open" if is_open else ""}>{content}</details>'


def _drawings(chart: Chart, number: int) -> Iterator[str]:
    """Yield a drawing for each cost, for wide and for narrow screens, of which the style shows one."""
    for cost in chart.costs:
        for name, canvas in (("wide", WIDE), ("narrow", NARROW)):
            over = f' class="over-{cost}"' if cost else ""
            yield f'<div{over}><div class="{name}">{draw(chart, cost, canvas, f"c{number}-{cost}-{name}")}</div></div>'


def _table(table: ReportTable, name: str, kind: str = "", marks: list[str] | None = None) -> str:
    """Return a table in a region that scrolls sideways and takes the focus of the keyboard.

    A row of one whose ``kind`` stacks is a block on a narrow screen, with the name of its column before each cell.
    """
    head = "".join(
        f'<th scope="col"{_side(side)}>{_text(cell)}</th>' for cell, side in zip(table.header, table.align, strict=True)
    )
    named = [
        f' data-name="{escape(each)}"' if place and "stacks" in kind else "" for place, each in enumerate(table.header)
    ]
    rows = []
    for number, row in enumerate(table.rows):
        cells = [
            f"<td{LONG_CELL if len(cell) > LONG else _side(side)}{name}>{_text(cell)}</td>"
            for cell, side, name in zip(row, table.align, named, strict=True)
        ]
        if marks:
            cells[0] = f'<th scope="row" class="run">{marks[number]}{_text(row[0])}</th>'
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(name)}"><table class="{kind}">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _side(side: str) -> str:
    return ' class="r"' if side == "r" else ""


def _text(text: str) -> str:
    """Return ``text`` for the page: escaped, and with a direction of its own."""
    return escape(text) if text.isascii() else f"<bdi>{escape(text)}</bdi>"
