"""The charts of a replay: what other rules would have done in a recorded run, against an even split and shuffling."""

from __future__ import annotations

import numpy as np

from apportion.replay.notes import POLICY, notes
from apportion.replay.results import AllocatorReplay, Replay
from apportion.report.charts import Chart, bar, count, percent, table_of

MEASURES = ("mixed", "variance", "signal", "hits", "dead")


def rules_chart(name: str, style: int, found: Replay) -> Chart:
    """Return how far rules would have lowered the variance in the run ``name``, which is drawn in ``style``."""
    series = []
    for each in found.allocators:
        if "variance" in each.ratios and np.isfinite(each.ratios["variance"].value):
            value, low, high = each.ratios["variance"]
            series.append(bar(each.name, style, (1 - value, 1 - high, 1 - low)))
    title = f"Rules replayed on {name}"
    rows = (
        (each.name, each.source, count(each.cells.total("rollouts")), *(_ratio(each, measure) for measure in MEASURES))
        for each in found.allocators
    )
    text = (
        "How far each rule would have lowered the variance of RLOO's gradient below that of an even split of the same "
        "rollouts, with its 95% interval over prompts."
    )
    header = ("rule", "outcomes", "rollouts", *(f"{measure} / even" for measure in MEASURES))
    return Chart(
        f"rules_{style + 1}", title, text, "bars", tuple(series), table_of(title, header, rows, "llrrrrrr"),
        x_label="variance less than an even split's", notes=tuple(notes(found)),
    )  # fmt: skip


def choices_chart(name: str, style: int, found: Replay) -> Chart:
    """Return the mixed groups that rules which choose prompts would have found above shuffled epochs."""
    chosen = [each for each in found.selectors if np.isfinite(each.above_shuffled.value) and each.name != "shuffled"]
    title = f"Choices replayed on {name}"
    rows = (
        (
            each.name,
            percent(float(np.nanmean(each.mixed)), 1),
            *(percent(value, 1) for value in each.above_shuffled),
            count(each.coverage),
            count(each.choices[0].prompts),
        )
        for each in chosen
    )
    text = (
        "How far each choice of prompts would have raised the share of mixed groups above that of shuffled epochs, in "
        "percentage points, with its 95% interval over stretches of steps."
    )
    header = ("choice", "mixed", "above shuffled", "from", "to", "prompts found mixed", "of")
    return Chart(
        f"choices_{style + 1}", title, text, "bars",
        tuple(bar(each.name, style, each.above_shuffled) for each in chosen), table_of(title, header, rows),
        x_label="mixed groups above shuffled epochs", notes=(POLICY,),
    )  # fmt: skip


def _ratio(each: AllocatorReplay, measure: str) -> str:
    if measure not in each.ratios or not np.isfinite(each.ratios[measure].value):
        return "unknown"
    found = each.ratios[measure]
    return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"
