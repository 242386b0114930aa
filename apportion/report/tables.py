"""A report as text for a terminal, and as JSON."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np

from apportion.report.charts import Chart, ChartSeries, ReportTable
from apportion.report.report import RunReport
from apportion.runs.json_text import json_text
from apportion.runs.text_table import text_table
from apportion.untrusted import one_line

TEXT_ROWS = 6
"""The most rows of a run in a table of text, evenly spaced."""


def text_of(report: RunReport) -> str:
    """Return the report as tables of text. Long tables are thinned out."""
    blocks = [_summary(report)]
    blocks += [_table(table) for table in report.overviews]
    blocks += [_chart(chart) for chart in report.charts]
    blocks += ["\n".join([*map(one_line, (table.caption, *table.notes)), _table(table)]) for table in report.tables]
    return "\n\n".join(blocks)


def json_of(report: RunReport) -> str:
    """Return the report as one JSON object, with null for unknown values."""
    entries = zip(report.names, report.summaries, report.decisions, strict=True)
    content = {
        "runs": [{"name": name, "summary": words, "decisions": decisions} for name, words, decisions in entries],
        "notes": report.notes,
        "tables": {
            table.caption: [dict(zip(table.header, row, strict=True)) for row in table.rows]
            for table in (*report.overviews, *report.tables)
        },
        "charts": {
            chart.key: {"title": chart.title, "series": [_series(each) for each in chart.series]}
            for chart in report.charts
        },
    }
    return json_text(content)


def _summary(report: RunReport) -> str:
    lines = []
    for name, summary, decisions in zip(report.names, report.summaries, report.decisions, strict=True):
        lines += [f"{name}: {summary}", *decisions]
    return "\n".join(map(one_line, [*lines, *report.notes]))


def _chart(chart: Chart) -> str:
    return "\n".join([*map(one_line, (chart.title, chart.text)), _table(chart.table)])


def _table(table: ReportTable) -> str:
    rows = [[one_line(cell) for cell in row] for row in _thinned(table.rows)]
    return text_table(rows, table.header, align=table.align)


def _thinned(rows: tuple[tuple[str, ...], ...]) -> list[tuple[str, ...]]:
    """Return at most 6 rows of each run, by the first column; tables of one run have numbers there."""
    kept: list[tuple[str, ...]] = []
    for _, group in groupby(rows, key=lambda row: "" if row[0].replace(",", "").isdigit() else row[0]):
        own = list(group)
        kept += [own[at] for at in np.unique(np.linspace(0, len(own) - 1, min(len(own), TEXT_ROWS)).astype(int))]
    return kept


def _series(series: ChartSeries) -> dict[str, Any]:
    curve = series.curve
    columns = {key or "x": values for key, values in curve.x.items()}
    columns |= {"y": curve.y, "low": curve.low, "high": curve.high}
    return {"name": series.name} | {key: [float(f"{each:.6g}") for each in own] for key, own in columns.items()}
