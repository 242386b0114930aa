"""A report as JSON."""

from __future__ import annotations

from typing import Any

from apportion.report.charts import ChartSeries
from apportion.report.report import RunReport
from apportion.runs.json_text import json_text


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


def _series(series: ChartSeries) -> dict[str, Any]:
    curve = series.curve
    columns = {key or "x": values for key, values in curve.x.items()}
    columns |= {"y": curve.y, "low": curve.low, "high": curve.high}
    return {"name": series.name} | {key: [float(f"{each:.6g}") for each in own] for key, own in columns.items()}
