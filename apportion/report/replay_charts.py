"""The charts of a replay: what other rules would have done in a recorded run, against an even split and shuffling."""

from __future__ import annotations

import numpy as np

from apportion.replay.intervals import Spanned
from apportion.replay.notes import POLICY, notes
from apportion.replay.results import AllocatorReplay, Replay
from apportion.report.charts import Chart, ChartSeries, ReportTable, count, percent
from apportion.report.curves import Curve

MEASURES = ("mixed", "variance", "signal", "hits", "dead")


def replay_charts(name: str, style: int, found: Replay) -> list[Chart]:
    """Return the charts of what ``found`` says of the run ``name``, which is drawn in ``style``."""
    return [chart for chart in (_splits(name, style, found), _choices(name, style, found)) if chart is not None]


def _splits(name: str, style: int, found: Replay) -> Chart | None:
    """Return the rollouts that rules which split them would have saved against an even split, by variance."""
    shown = [(each, _saved(each.ratios["variance"])) for each in found.allocators if "variance" in each.ratios]
    series = tuple(
        ChartSeries(each.name, style, Curve({}, *(np.array([value]) for value in saved)))
        for each, saved in shown
        if np.isfinite(saved.value)
    )
    if not series:
        return None
    title = f"Rules replayed on {name}"
    header = ("rule", "outcomes", "rollouts", *(f"{measure} / even" for measure in MEASURES))
    rows = tuple(
        (each.name, each.source, count(each.cells.total("rollouts")), *(_ratio(each, measure) for measure in MEASURES))
        for each in found.allocators
    )
    text = (
        "How far each rule would have lowered the variance of RLOO's gradient below that of an even split of the same "
        "rollouts, with its 95% interval over prompts."
    )
    return Chart(
        f"rules_{style + 1}", title, text, "bars", series, ReportTable(title, header, rows, "llrrrrrr"),
        x_label="variance less than an even split's", notes=tuple(notes(found)),
    )  # fmt: skip


def _choices(name: str, style: int, found: Replay) -> Chart | None:
    """Return the mixed groups that rules which choose prompts would have found above shuffled epochs."""
    chosen = [each for each in found.selectors if np.isfinite(each.above_shuffled.value) and each.name != "shuffled"]
    if not chosen:
        return None
    title = f"Choices replayed on {name}"
    series = tuple(
        ChartSeries(each.name, style, Curve({}, *(np.array([value]) for value in each.above_shuffled)))
        for each in chosen
    )
    rows = tuple(
        (
            each.name,
            percent(float(np.nanmean(each.mixed)), 1),
            *(percent(value, 1) for value in each.above_shuffled),
            count(each.coverage),
            count(each.choices[0].prompts),
        )
        for each in chosen
    )
    header = ("choice", "mixed", "above shuffled", "from", "to", "prompts found mixed", "of")
    text = (
        "How far each choice of prompts would have raised the share of mixed groups above that of shuffled epochs, in "
        "percentage points, with its 95% interval over stretches of steps."
    )
    return Chart(
        f"choices_{style + 1}", title, text, "bars", series, ReportTable(title, header, rows, "lrrrrrr"),
        x_label="mixed groups above shuffled epochs", notes=(POLICY,),
    )  # fmt: skip


def _saved(ratio: Spanned) -> Spanned:
    return Spanned(1 - ratio.value, 1 - ratio.high, 1 - ratio.low)


def _ratio(each: AllocatorReplay, measure: str) -> str:
    if measure not in each.ratios or not np.isfinite(each.ratios[measure].value):
        return "unknown"
    found = each.ratios[measure]
    return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"
