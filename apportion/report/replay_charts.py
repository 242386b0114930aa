"""The rows and charts of a replay: what other rules would have done, against an even split and shuffled epochs."""

from __future__ import annotations

import math

import numpy as np

from apportion.replay.intervals import Spanned
from apportion.replay.notes import POLICY, notes
from apportion.replay.results import AllocatorReplay, Replay, SelectorReplay
from apportion.report.charts import Chart, bar

UNKNOWN = Spanned(math.nan, math.nan, math.nan)


def allocator_row(each: AllocatorReplay, digits: int = 2) -> dict[str, str]:
    """Return the columns of a rule that splits rollouts. Its ratios have so many ``digits``."""
    cells = each.cells
    names = ("mixed", "variance", "signal", "hits", "dead")
    return {
        "rule": "as recorded" if each.source == "recorded" else each.name,
        "outcomes": each.source,
        "rollouts": f"{cells.total('rollouts'):,.0f}" + ("" if each.same_total else f" (x{each.of_budget:.2f})"),
        "tokens": _whole(cells.total("tokens")),
        **{name: _shown(each.ratios.get(name, UNKNOWN), f".{digits}f") for name in names},
        "coverage": f"{_whole(cells.coverage())} of {cells.prompts:,}",
        "even's": _whole(cells.coverage(even=True)),
    }


def selector_row(each: SelectorReplay) -> dict[str, str]:
    """Return the columns of a rule that chooses prompts."""
    return {
        "choice": each.name,
        "mixed share": f"{np.nanmean(each.mixed):.3f}",
        "above shuffled": _shown(each.above_shuffled, "+.3f"),
        "hits share": "-" if np.isnan(each.hits).any() else f"{each.hits.mean():.3f}",
        "dead": f"{each.dead.sum() / max(1.0, each.rollouts.sum()):.1%}",
        "coverage": f"{each.coverage:,.0f} of {each.choices[0].prompts:,}",
        "never": str(max(own.never for own in each.choices)),
        "longest wait": str(max(own.longest_wait for own in each.choices)),
    }


def rules_chart(name: str, style: int, found: Replay) -> Chart:
    """Return how far rules would have lowered the variance in the run ``name``, which is drawn in ``style``."""
    series = []
    for each in found.allocators:
        (value, low, high), row = each.ratios.get("variance", UNKNOWN), allocator_row(each)
        more = {key: row[key] for key in ("outcomes", "rollouts", "mixed", "signal", "hits", "dead")}
        series.append(bar(each.name, style, (1 - value, 1 - high, 1 - low), more))
    text = (
        "How far each rule would have lowered the variance of RLOO's gradient below that of an even split of the same "
        "rollouts, with its 95% interval over prompts. The table also has other measures over those of the even split."
    )
    return Chart(
        f"rules_{style + 1}", f"Rules replayed on {name}", text, "bars", tuple(series),
        x_label="variance less than an even split's", label="rule", notes=tuple(notes(found)),
    )  # fmt: skip


def choices_chart(name: str, style: int, found: Replay) -> Chart:
    """Return the mixed groups that rules which choose prompts would have found above shuffled epochs."""
    series = []
    for each in found.selectors:
        if np.isfinite(each.above_shuffled.value) and each.name != "shuffled":
            more = {key: selector_row(each)[key] for key in ("mixed share", "dead", "coverage")}
            series.append(bar(each.name, style, each.above_shuffled, more))
    text = (
        "How far each choice of prompts would have raised the share of mixed groups above that of shuffled epochs, in "
        "percentage points, with its 95% interval over stretches of steps."
    )
    return Chart(
        f"choices_{style + 1}", f"Choices replayed on {name}", text, "bars", tuple(series),
        x_label="mixed groups above shuffled epochs", label="choice", notes=(POLICY,),
    )  # fmt: skip


def _shown(found: Spanned, form: str) -> str:
    if not math.isfinite(found.value):
        return "-" if math.isnan(found.value) else "inf"
    value, low, high = (format(each, form) for each in found)
    return value + ("" if math.isnan(found.low) else f" [{low}, {high}]")


def _whole(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:,.0f}"
