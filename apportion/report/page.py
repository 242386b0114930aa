"""A report as one HTML page, which loads nothing and runs no script."""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime
from html import escape

from apportion.report.charts import Chart, ReportTable
from apportion.report.curves import COSTS
from apportion.report.report import RunReport
from apportion.report.style import stylesheet
from apportion.report.svg import draw

SIDES = {"l": "", "r": ' class="r"'}


def page_of(report: RunReport) -> str:
    """Return the page.

    All text is escaped, and a policy in the page forbids scripts, loads, forms and other styles than its own.
    """
    known = tuple(key for key in COSTS if any(key in chart.costs for chart in report.charts))
    style = stylesheet(known)
    allowed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{allowed}'; base-uri 'none'; form-action 'none'"
    stamp = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    title = "Where the rollouts went"
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
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
            *map(_table, report.overviews),
            _costs(known),
            '<div class="grid-of-charts" id="charts" tabindex="-1">',
            *(_figure(chart, number) for number, chart in enumerate(report.charts)),
            "</div>",
            *(_folded(table) for table in report.tables),
            f"</main><footer>Made by apportion report, {stamp}.</footer></body></html>\n",
        ]
    )


def _summary(report: RunReport, at: int) -> str:
    decisions = "".join(f"<li>{_text(each)}</li>" for each in report.decisions[at])
    more = f'<ul class="decisions">{decisions}</ul>' if decisions else ""
    return f"<li><strong>{_text(report.names[at])}</strong>: {_text(report.summaries[at])}{more}</li>"


def _costs(known: tuple[str, ...]) -> str:
    """Return the control that switches between the known costs."""
    if len(known) < 2:
        return ""
    choices = [
        f'<label><input type="radio" name="cost" id="cost-{key}"{" checked" if key == known[0] else ""}>{COSTS[key]}'
        "</label>"
        for key in known
    ]
    return f'<fieldset class="switches"><legend>Against</legend>{"".join(choices)}</fieldset>'


def _figure(chart: Chart, number: int) -> str:
    drawings = "".join(
        f'<div class="scroll{f" over-{cost}" if cost else ""}">{draw(chart, cost, f"c{number}-{cost}")}</div>'
        for cost in chart.costs
    )
    caption = f"<figcaption><h2>{_text(chart.title)}</h2><p>{_text(chart.text)}</p></figcaption>"
    numbers = f"<details><summary>Numbers of this chart</summary>{_table(chart.table)}</details>"
    return f'<figure id="{escape(chart.key)}">{caption}{drawings}{numbers}</figure>'


def _folded(table: ReportTable) -> str:
    heading = f"<summary><h2>{_text(table.caption)}</h2></summary>"
    notes = "".join(f'<p class="note">{_text(note)}</p>' for note in table.notes)
    return f'<details class="section" open>{heading}{_table(table)}{notes}</details>'


def _table(table: ReportTable) -> str:
    """Return a table that scrolls sideways and can get the keyboard's focus."""
    head, *rows = (
        "".join(f"<{tag}{SIDES[side]}>{_text(cell)}</{tag[:2]}>" for cell, side in zip(row, table.align, strict=True))
        for tag, row in [('th scope="col"', table.header), *(("td", row) for row in table.rows)]
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(table.caption)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody></table></div>"
    )


def _text(text: str) -> str:
    """Return ``text`` escaped for the page, with its own text direction."""
    return escape(text) if text.isascii() else f"<bdi>{escape(text)}</bdi>"
