"""The charts and tables of training runs, from their profiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from apportion.report.charts import Chart, ChartSeries, ReportTable, costs_at, count, curve_table, hours, percent
from apportion.report.curves import COSTS, Curve
from apportion.report.profile import ALL_EQUAL, ALL_RIGHT, ALL_WRONG, BAND_NAMES, RunProfile
from apportion.report.replay_charts import replay_charts

Styled = Sequence[tuple[int, RunProfile]]
"""Runs with their places in the table of runs, which decide how they are drawn."""

DEAD = {
    ALL_RIGHT: ("Groups that were all right", "Every rollout of such a group was right, so the group was dead."),
    ALL_WRONG: ("Groups that were all wrong", "No rollout of such a group was right, so the group was dead."),
    ALL_EQUAL: ("Groups with equal rewards", "All rewards of such a group were equal, so the group was dead."),
}


def training_charts(runs: Styled) -> list[Chart]:
    """Return the charts of ``runs``. A chart without any value is left out."""
    found = [_held_out(runs), _success(runs), *(_dead(kind, runs) for kind in DEAD), _calibration(runs)]
    found += [_saved(runs), *(_advice(style, run) for style, run in runs)]
    for style, run in runs:
        found += [] if run.replay is None else replay_charts(run.name, style, run.replay)
    found += [_bands(style, run) for style, run in runs]
    return [chart for chart in found if chart is not None]


def training_tables(runs: Styled) -> list[ReportTable]:
    """Return the tables that belong to no chart: the prompts that took rollouts and were in dead groups."""
    return [_wasted(run) for _, run in runs if run.wasted]


def runs_table(runs: Sequence[RunProfile]) -> ReportTable:
    """Return the table of runs."""
    header = ("run", "source", "steps", "prompts", "rollouts", "tokens", "hours", _mean(runs), "in dead groups")
    rows = [
        (
            run.name,
            run.source,
            count(run.totals.steps),
            count(run.totals.prompts),
            count(run.totals.rollouts),
            count(run.totals.tokens),
            hours(run.totals.hours),
            percent(run.totals.success) if _is_share(run) else _number(run.totals.success),
            _wasted_share(run),
        )
        for run in runs
    ]
    shown = [at for at, name in enumerate(header) if name != "prompts" or any(row[at] != "unknown" for row in rows)]
    cells = tuple(tuple(row[at] for at in shown) for row in rows)
    return ReportTable("Training runs", tuple(header[at] for at in shown), cells, "ll" + "r" * (len(shown) - 2))


def summary_of(run: RunProfile) -> str:
    """Return the run in one sentence: how many of its rollouts were in dead groups."""
    totals, dead = run.totals, run.totals.dead_rollouts
    if dead is not None and totals.arrived and totals.single < totals.groups:
        parts = [f"{round(100 * number / totals.arrived)} {kind}" for kind, number in dead.items() if number]
        text = f"{round(100 * sum(dead.values()) / totals.arrived)} of 100 rollouts were in dead groups"
        if totals.dead_share is not None and np.isfinite(totals.dead_share.low):
            low, high = (100 * end for end in totals.dead_share[1:])
            text += f" (95% interval {low:.0f} to {high:.0f})"
        text += f": {', '.join(parts)}" if parts else ""
    elif totals.dead_groups and totals.single < totals.groups:
        parts = [
            f"{round(100 * number / totals.groups)} {kind}" for kind, number in totals.dead_groups.items() if number
        ]
        text = f"{round(100 * sum(totals.dead_groups.values()) / totals.groups)} of 100 groups were dead"
        text += f": {', '.join(parts)}" if parts else ""
    else:
        text = "no group has two rewards, so none can be said to be dead"
    if totals.dead_tokens is not None and np.isfinite(totals.dead_tokens) and totals.single < totals.groups:
        text += f". They took {round(100 * totals.dead_tokens)} of 100 completion tokens"
    if run.saved is not None:
        share, low, high = run.saved
        words = f"{percent(abs(share))} {'fewer' if share >= 0 else 'more'} rollouts"
        text += f". It needed {words} than {run.baseline} to reach {run.baseline}'s final success"
        if np.isfinite(low):
            text += f" (95% interval {percent(low)} to {percent(high)})"
    return f"{text}."


def _success(runs: Styled) -> Chart | None:
    series = _series(runs, {run.name: run.success for _, run in runs})
    if not series:
        return None
    shares = all(_is_share(run) for _, run in runs)
    text = (
        "The mean reward of the rollouts, each group counted once, with its 95% interval. "
        "A rule that chooses prompts changes what this is a mean of."
    )
    label = _mean([run for _, run in runs])
    title = f"{label.capitalize()} of the rollouts"
    table = curve_table(title, series, label, shares)
    return Chart(
        "success", title, text, "lines", series, table,
        y_label=label, detail=_ends(series, shares), percent=shares, notes=_unknown(series),
    )  # fmt: skip


def _mean(runs: Sequence[RunProfile]) -> str:
    """Return what the mean of rewards is called: success if all are 0 or 1."""
    return "success" if all(run.binary for run in runs) else "mean reward"


def _held_out(runs: Styled) -> Chart | None:
    series = _series(runs, {run.name: run.held_out for _, run in runs if run.held_out is not None})
    if not series:
        return None
    left = [run.name for _, run in runs if run.held_out is None]
    notes = (f"Not measured: {', '.join(left)}.",) if left else ()
    text = "The exact success on problems that were not trained on, with its 95% interval over seeds."
    table = curve_table("Success on held-out problems", series, "success")
    return Chart(
        "held_out", "Success on held-out problems", text, "lines", series, table,
        y_label="success", detail=_ends(series), notes=(*_unknown(series), *notes),
    )  # fmt: skip


def _dead(kind: str, runs: Styled) -> Chart | None:
    title, text = DEAD[kind]
    series = _series(runs, {run.name: run.dead[kind] for _, run in runs if kind in run.dead})
    if not series:
        return None
    key = f"dead_{kind.replace(' ', '_')}"
    table = curve_table(title, series, "share of groups")
    return Chart(
        key, title, text, "lines", series, table,
        y_label="share of groups", detail=_ends(series), from_zero=True, notes=_unknown(series),
    )  # fmt: skip


def _calibration(runs: Styled) -> Chart | None:
    series, rows, errors = [], [], []
    for style, run in runs:
        found = run.calibration
        if found is None:
            continue
        series.append(ChartSeries(run.name, style, Curve({"": found.predicted}, found.observed, found.low, found.high)))
        errors.append(f"{run.name}: {found.error_name} {found.error:.3f}.")
        columns = zip(found.predicted, found.observed, found.low, found.high, found.groups, strict=True)
        rows += [(run.name, *(percent(value, 1) for value in values), count(groups)) for *values, groups in columns]
    if not series:
        return None
    header = ("run", "predicted", "observed", "from", "to", "groups")
    text = (
        "Points on the dotted line were predicted rightly. Above it, prompts were easier than predicted. "
        "Bars are 95% intervals."
    )
    return Chart(
        "calibration", "Predicted against observed success", f"{text} {' '.join(errors)}", "points", tuple(series),
        ReportTable("Predicted against observed success", header, tuple(rows), "lrrrrr"),
        x_label="predicted success", y_label="observed success", unit=True, diagonal=True, x_percent=True,
        notes=tuple(_predictions(runs)),
    )  # fmt: skip


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


def _saved(runs: Styled) -> Chart | None:
    found = [(style, run, run.saved) for style, run in runs if run.saved is not None]
    if not found:
        return None
    series = tuple(
        ChartSeries(run.name, style, Curve({}, np.array([share]), np.array([low]), np.array([high])))
        for style, run, (share, low, high) in found
    )
    rows = tuple((run.name, *(percent(value, 1) for value in saved)) for _, run, saved in found)
    left = [run.name for _, run in runs if run.baseline is not None and run.saved is None]
    notes = (
        (f"Not shown, because a seed never reached it or the baseline did not learn: {', '.join(left)}.",)
        if left
        else ()
    )
    names = " and ".join(dict.fromkeys(str(run.baseline) for _, run, _ in found))
    text = f"The share of the rollouts of {names} that a run did without, up to the final success of {names}."
    return Chart(
        "saved", f"Rollouts saved against {names}", text, "bars", series,
        ReportTable(f"Rollouts saved against {names}", ("run", "saved", "from", "to"), rows, "lrrr"),
        x_label="rollouts saved", notes=notes,
    )  # fmt: skip


def _advice(style: int, run: RunProfile) -> Chart | None:
    if run.advice is None:
        return None
    every = [*run.advice.recommended, *run.advice.considered]
    known = [each for each in every if np.isfinite(each.saving.value)]
    if not known:
        return None
    series = tuple(
        ChartSeries(each.change, style, Curve({}, *(np.array([value]) for value in each.saving))) for each in known
    )
    header = ("change", "saved", "from", "to", "measure", "before", "after")
    rows = tuple(
        (
            each.change,
            *(percent(value, 1) for value in each.saving),
            each.measure,
            f"{each.before:.2f}",
            f"{each.after:.2f}",
        )
        for each in known
    )
    title = f"What would have helped {run.name}"
    text = (
        "The share of the rollouts that would have been saved, replayed with what was known before each step. "
        f"Bars are {percent(run.advice.confidence, 1)} intervals over prompts, so that all hold together with 95%."
    )
    conditions: dict[str, list[str]] = {}
    for each in run.advice.recommended:
        conditions.setdefault(each.condition, []).append(each.change)
    notes = tuple(f"{'; '.join(changes)}: {condition}" for condition, changes in conditions.items())
    notes += tuple(
        f"{each.change}: in TRL, {each.code.trainer}. In verl, {each.code.command} {each.code.note}".rstrip()
        for each in run.advice.recommended
    )
    notes = notes or ("Nothing here would have helped beyond noise.",)
    return Chart(
        f"advice_{style + 1}", title, text, "bars", series, ReportTable(title, header, rows, "lrrrlrr"),
        x_label="rollouts saved", notes=notes,
    )  # fmt: skip


def _bands(style: int, run: RunProfile) -> Chart | None:
    if run.bands is None:
        return None
    series = tuple(
        ChartSeries(name, band, Curve(run.places, run.bands[:, band], *(np.full(len(run.bands), np.nan),) * 2))
        for band, name in enumerate(BAND_NAMES)
    )
    rows = tuple(
        (*costs_at(run.places, place), *(percent(share, 1) for share in shares))
        for place, shares in enumerate(run.bands)
    )
    title = f"Where the rollouts of {run.name} went"
    weights = np.diff(run.places["rollouts"], prepend=0)
    shares = weights @ run.bands / weights.sum() if weights.sum() else weights @ run.bands
    text = (
        f"Shares of the rollouts by the success of their prompts. {run.difficulty} Over the whole run, "
        f"{percent(shares[0])} went to prompts {BAND_NAMES[0]} and {percent(shares[-1])} to prompts {BAND_NAMES[-1]}."
    )
    table = ReportTable(title, ("rollouts", "tokens", "hours", *BAND_NAMES), rows, "r" * (3 + len(BAND_NAMES)))
    return Chart(
        f"bands_{style + 1}", title, text, "stack", series, table,
        y_label="share of rollouts", layer_label="success", unit=True, notes=_unknown(series[:1], run.name),
    )  # fmt: skip


def _wasted(run: RunProfile) -> ReportTable:
    rows = [(each.text, count(each.rollouts), count(each.dead), percent(each.success, 1)) for each in run.wasted]
    header = ("prompt", "rollouts", "in dead groups", "success")
    return ReportTable(f"Prompts of {run.name} with the most rollouts in dead groups", header, tuple(rows), "lrrr")


def _series(runs: Styled, curves: Mapping[str, Curve]) -> tuple[ChartSeries, ...]:
    styles = {run.name: style for style, run in runs}
    return tuple(ChartSeries(name, styles[name], curve) for name, curve in curves.items() if curve.has_values)


def _ends(series: Sequence[ChartSeries], as_percent: bool = True) -> str:
    """Return where each curve begins and ends, in words."""
    parts = []
    for each in series:
        known = each.curve.y[np.isfinite(each.curve.y)]
        first, last = (percent(value) if as_percent else f"{value:.3g}" for value in (known[0], known[-1]))
        parts.append(f"{each.name}: {first} at first, {last} at the end.")
    return " ".join(parts)


def _unknown(series: Sequence[ChartSeries], name: str | None = None) -> tuple[str, ...]:
    """Return a sentence for each cost that some curves are not known over."""
    found = []
    for key, words in COSTS.items():
        missing = [name or each.name for each in series if key not in each.curve.x]
        if missing and len(missing) < len(series):
            found.append(f"Not drawn over {words}, which were not recorded: {', '.join(missing)}.")
    return tuple(found)


def _wasted_share(run: RunProfile) -> str:
    totals = run.totals
    if totals.dead_rollouts is not None and totals.arrived and totals.single < totals.groups:
        return percent(sum(totals.dead_rollouts.values()) / totals.arrived)
    if totals.dead_groups and totals.single < totals.groups:
        return f"{percent(sum(totals.dead_groups.values()) / totals.groups)} of groups"
    return "-"


def _is_share(run: RunProfile) -> bool:
    low, high = run.rewards
    return low >= 0 and high <= 1


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"
