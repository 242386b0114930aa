"""The charts and tables of training runs, from their profiles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from apportion.diagnosis.advice import AdviceList
from apportion.report.charts import (
    Chart,
    ChartSeries,
    ReportTable,
    bar,
    calibration_chart,
    count,
    hours,
    percent,
    table_of,
)
from apportion.report.curves import COSTS, Curve, plain_curve
from apportion.report.profile import ALL_EQUAL, ALL_RIGHT, ALL_WRONG, BAND_NAMES, RunProfile
from apportion.report.replay_charts import choices_chart, rules_chart
from apportion.types import Floats

Styled = Sequence[tuple[int, RunProfile]]
"""Runs with their places in the table of runs, which decide how they are drawn."""

DEAD = {
    ALL_RIGHT: ("Groups that were all right", "Every rollout of such a group was right, so the group was dead."),
    ALL_WRONG: ("Groups that were all wrong", "No rollout of such a group was right, so the group was dead."),
    ALL_EQUAL: ("Groups with equal rewards", "All rewards of such a group were equal, so the group was dead."),
}


def training_charts(runs: Styled) -> Iterator[Chart]:
    """Yield the charts of ``runs``. Some may have no series."""
    if not runs:
        return
    left = [run.name for _, run in runs if run.held_out is None]
    yield _over_costs(
        runs, [run.held_out for _, run in runs], "held_out", "Success on held-out problems",
        "The exact success on problems that were not trained on, with its 95% interval over seeds.",
        "success", notes=[f"Not measured: {', '.join(left)}."] if left else (),
    )  # fmt: skip
    label = _mean([run for _, run in runs])
    yield _over_costs(
        runs, [run.success for _, run in runs], "success", f"{label.capitalize()} of the rollouts",
        "The mean reward of the rollouts, each group counted once, with its 95% interval. "
        "A rule that chooses prompts changes what this is a mean of.",
        label, shares=all(_is_share(run) for _, run in runs),
    )  # fmt: skip
    for kind, words in DEAD.items():
        curves = [run.dead.get(kind) for _, run in runs]
        yield _over_costs(runs, curves, f"dead_{kind.replace(' ', '_')}", *words, "share of groups", zero=True)
    yield _calibration(runs)
    yield from (_advice(style, run.name, run.advice) for style, run in runs if run.advice is not None)
    for style, run in runs:
        if run.replay is not None:
            yield rules_chart(run.name, style, run.replay)
            yield choices_chart(run.name, style, run.replay)
    yield from (_bands(style, run, run.bands) for style, run in runs if run.bands is not None)


def wasted_table(run: RunProfile) -> ReportTable:
    """Return the table of the prompts that took rollouts and were in dead groups."""
    rows = ((each.text, count(each.rollouts), count(each.dead), _reward(run, each.success, 1)) for each in run.wasted)
    header = ("prompt", "rollouts", "in dead groups", _mean([run]))
    return table_of(f"Prompts of {run.name} with the most rollouts in dead groups", header, rows)


def runs_table(runs: Sequence[RunProfile]) -> ReportTable:
    """Return the table of runs. Prompts are left out if their number is unknown for all, savings without a baseline."""
    header = [
        "run",
        "source",
        "steps",
        "prompts",
        "rollouts",
        "tokens",
        "hours",
        _mean(runs),
        "in dead groups",
        "saved",
    ]
    rows = [
        [
            run.name,
            run.source,
            count(run.totals.steps),
            count(run.totals.prompts),
            count(run.totals.rollouts),
            count(run.totals.tokens),
            hours(run.totals.hours),
            _reward(run, run.totals.success),
            _wasted_share(run),
            _saved(run),
        ]
        for run in runs
    ]
    left = {"prompts": all(run.totals.prompts is None for run in runs), "saved": not any(run.baseline for run in runs)}
    kept = [at for at, name in enumerate(header) if not left.get(name)]
    cells = [[row[at] for at in kept] for row in (header, *rows)]
    return table_of("Training runs", cells[0], cells[1:], "ll" + "r" * (len(kept) - 2))


def summary_of(run: RunProfile) -> str:
    """Return the run in one sentence: how many of its rollouts were in dead groups."""
    totals = run.totals
    if totals.dead is None:
        text = "no group has two rewards, so none can be said to be dead"
    else:
        unit, kinds, number = totals.dead
        words = "were in dead groups" if unit == "rollouts" else "were dead"
        text = f"{round(100 * sum(kinds.values()) / number)} of 100 {unit} {words}"
        if totals.dead_share is not None and np.isfinite(totals.dead_share.low):
            low, high = (100 * end for end in totals.dead_share[1:])
            text += f" (95% interval {low:.0f} to {high:.0f})"
        parts = [f"{round(100 * dead / number)} {kind}" for kind, dead in kinds.items() if dead]
        text += f": {', '.join(parts)}" if parts else ""
        if totals.dead_tokens is not None and np.isfinite(totals.dead_tokens):
            text += f". They took {round(100 * totals.dead_tokens)} of 100 completion tokens"
    if run.saved is not None:
        text += f". Of the rollouts that {run.baseline} took to its final success it saved {_saved(run)}"
    return f"{text}."


def _over_costs(
    runs: Styled,
    curves: Sequence[Curve | None],
    key: str,
    title: str,
    text: str,
    label: str,
    shares: bool = True,
    zero: bool = False,
    notes: Iterable[str] = (),
) -> Chart:
    """Return the chart of one curve of each run over its costs, for the runs that have one."""
    series = [
        ChartSeries(run.name, style, curve)
        for (style, run), curve in zip(runs, curves, strict=True)
        if curve is not None and np.isfinite(curve.y).any()
    ]
    return Chart(
        key, title, text, "lines", tuple(series), y_label=label, percent=shares, from_zero=zero,
        notes=(*_unknown(series), *notes),
    )  # fmt: skip


def _calibration(runs: Styled) -> Chart:
    known = [(style, run.name, run.calibration) for style, run in runs if run.calibration is not None]
    series = [ChartSeries(name, style, own.curve, {"groups": [*map(count, own.groups)]}) for style, name, own in known]
    text = (
        "A line on the dotted one was predicted rightly. Above it, prompts were easier than predicted. "
        "The bands are 95% intervals."
    )
    text = " ".join([text, *(f"{name}: {own.error_name} {own.error:.3f}." for _, name, own in known)])
    labels = ("predicted success", "observed success", "run")
    title = "Predicted against observed success"
    return calibration_chart("calibration", title, text, series, labels, _predictions(runs))


def _predictions(runs: Styled) -> Iterator[str]:
    """Yield what is to be said about the predictions of some runs."""
    replayed = [run.name for _, run in runs if run.foreseen and run.calibration is not None]
    if replayed:
        yield (
            f"No prediction was recorded for {', '.join(replayed)}. The points are what discounted counts would have "
            "predicted before each group."
        )
    if missing := [run.name for _, run in runs if run.calibration is None]:
        yield f"Without predictions: {', '.join(missing)}."


def _saved(run: RunProfile) -> str:
    """Return the share of the baseline's rollouts that were not needed, with its interval."""
    if run.saved is None:
        return "-" if run.baseline is None else "unknown"
    share, low, high = (percent(each) for each in run.saved)
    return f"{share} ({low} to {high})" if np.isfinite(run.saved[1]) else share


def _advice(style: int, name: str, advice: AdviceList) -> Chart:
    text = (
        "The share of the rollouts that would have been saved, replayed with what was known before each step. "
        f"Bars are {percent(advice.confidence, 1)} intervals over prompts, so that all hold together with 95%."
    )
    conditions: dict[str, list[str]] = {}
    for each in advice.recommended:
        conditions.setdefault(each.condition, []).append(each.change)
    notes = [f"{'; '.join(changes)}: {condition}" for condition, changes in conditions.items()]
    notes += [
        f"{each.change}: in TRL, {each.code.trainer}. In verl, {each.code.command} {each.code.note}".rstrip()
        for each in advice.recommended
    ]
    series = []
    for each in (*advice.recommended, *advice.considered):
        if np.isfinite(each.saving.value):
            change = {"measure": each.measure, "before": f"{each.before:.2f}", "after": f"{each.after:.2f}"}
            series.append(bar(each.change, style, each.saving, change))
    return Chart(
        f"advice_{style + 1}", f"What would have helped {name}", text, "bars", tuple(series),
        x_label="rollouts saved", label="change",
        notes=tuple(notes) or ("Nothing here would have helped beyond noise.",),
    )  # fmt: skip


def _bands(style: int, run: RunProfile, bands: Floats) -> Chart:
    series = [ChartSeries(name, at, plain_curve(run.places, bands[:, at])) for at, name in enumerate(BAND_NAMES)]
    weights = np.diff(run.places["rollouts"], prepend=0)
    shares = weights @ bands / max(weights.sum(), 1)
    text = (
        f"Shares of the rollouts by the success of their prompts. {run.difficulty} Over the whole run, "
        f"{percent(shares[0])} went to prompts {BAND_NAMES[0]} and {percent(shares[-1])} to prompts {BAND_NAMES[-1]}."
    )
    return Chart(
        f"bands_{style + 1}", f"Where the rollouts of {run.name} went", text, "lines", tuple(series),
        y_label="share of rollouts", layer_label="success", from_zero=True,
    )  # fmt: skip


def _mean(runs: Sequence[RunProfile]) -> str:
    """Return what the mean of rewards is called: success if all are 0 or 1."""
    return "success" if all(run.binary for run in runs) else "mean reward"


def _reward(run: RunProfile, mean: float | None, digits: int = 0) -> str:
    """Return a mean reward as text."""
    return percent(mean, digits) if _is_share(run) or mean is None else f"{mean:.3g}"


def _is_share(run: RunProfile) -> bool:
    low, high = run.rewards
    return low >= 0 and high <= 1


def _unknown(series: Sequence[ChartSeries]) -> Iterator[str]:
    """Yield a sentence for each cost that some curves are not known over."""
    for key, words in COSTS.items():
        missing = [each.name for each in series if key not in each.curve.x]
        if missing and len(missing) < len(series):
            yield f"Not drawn over {words}, which were not recorded: {', '.join(missing)}."


def _wasted_share(run: RunProfile) -> str:
    if run.totals.dead is None:
        return "-"
    unit, kinds, number = run.totals.dead
    return percent(sum(kinds.values()) / number) + (" of groups" if unit == "groups" else "")
