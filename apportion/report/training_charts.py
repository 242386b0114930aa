"""The charts and tables of training runs, from their profiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from apportion.diagnosis.advice import AdviceList
from apportion.report.charts import (
    Chart,
    ChartSeries,
    ReportTable,
    count,
    hours,
    percent,
    table_of,
)
from apportion.report.curves import Curve, plain_curve
from apportion.report.profile import ALL_EQUAL, ALL_RIGHT, ALL_WRONG, BAND_NAMES, RunProfile
from apportion.report.replay_tables import replay_tables, spanned_text
from apportion.types import Floats

DEAD = {
    ALL_RIGHT: ("Groups that were all right", "Every rollout of such a group was right, so the group was dead."),
    ALL_WRONG: ("Groups that were all wrong", "No rollout of such a group was right, so the group was dead."),
    ALL_EQUAL: ("Groups with equal rewards", "All rewards of such a group were equal, so the group was dead."),
}


def training_charts(runs: Sequence[RunProfile]) -> Iterator[Chart]:
    """Yield the charts of ``runs``. Some may have no series."""
    yield _over_costs(
        runs, [run.held_out for run in runs], "held_out", "Success on held-out problems",
        "The exact success on problems that were not trained on, with its 95% interval over seeds.", "success",
    )  # fmt: skip
    label = _mean(runs)
    yield _over_costs(
        runs, [run.success for run in runs], "success", f"{label.capitalize()} of the rollouts",
        "The mean reward of the rollouts, each group counted once, with its 95% interval. "
        "A rule that chooses prompts changes what this is a mean of.",
        label, shares=all(run.shares for run in runs),
    )  # fmt: skip
    for kind, words in DEAD.items():
        curves = [run.dead.get(kind) for run in runs]
        yield _over_costs(runs, curves, f"dead_{kind.replace(' ', '_')}", *words, "share of groups", zero=True)
    yield _by_size(runs)
    yield _calibration(runs)
    yield from (_bands(run, run.bands) for run in runs if run.bands is not None)


def run_tables(run: RunProfile) -> Iterator[ReportTable]:
    """Yield the tables of a run: what would have helped, what other rules would have done, and its wasted prompts."""
    if run.advice is not None and (run.advice.recommended or run.advice.considered):
        yield _advice(run.name, run.advice)
    if run.replay is not None:
        yield from replay_tables(run.name, run.replay)
    if run.wasted:
        rows = (
            (each.text, count(each.rollouts), count(each.dead), _reward(run, each.success, 1)) for each in run.wasted
        )
        header = ("prompt", "rollouts", "in dead groups", _mean([run]))
        yield table_of(f"Prompts of {run.name} with the most rollouts in dead groups", header, rows)


def runs_table(runs: Sequence[RunProfile]) -> ReportTable:
    """Return the table of runs. Prompts are left out if their number is unknown for all."""
    header = ["run", "source", "steps", "prompts", "rollouts", "tokens", "hours", _mean(runs), "in dead groups"]
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
        ]
        for run in runs
    ]
    if all(run.totals.prompts is None for run in runs):
        for row in (header, *rows):
            del row[3]
    return table_of("Training runs", header, rows, left=2)


def summary_of(run: RunProfile) -> str:
    """Return the run in one sentence: how many of its rollouts were in dead groups."""
    totals = run.totals
    if totals.dead is None:
        text = "no group has two rewards, so none can be said to be dead"
    else:
        dead, low, high = (100 * each for each in totals.dead)
        text = f"{dead:.0f} of 100 {totals.unit} were {'in dead groups' if totals.unit == 'rollouts' else 'dead'}"
        text += run.read + (f" (95% interval {low:.0f} to {high:.0f})" if np.isfinite(low) else "")
        parts = [f"{100 * share:.0f} {kind}" for kind, share in totals.dead_kinds.items() if share]
        text += f": {', '.join(parts)}" if parts else ""
        if totals.dead_tokens is not None and np.isfinite(totals.dead_tokens):
            text += f". They took {round(100 * totals.dead_tokens)} of 100 completion tokens"
    return f"{text}."


def _over_costs(
    runs: Sequence[RunProfile],
    curves: Sequence[Curve | None],
    key: str,
    title: str,
    text: str,
    label: str,
    shares: bool = True,
    zero: bool = False,
) -> Chart:
    """Return the chart of one curve of each run over its costs, for the runs that have one."""
    series = [
        ChartSeries(run.name, run.style, curve)
        for run, curve in zip(runs, curves, strict=True)
        if curve is not None and np.isfinite(curve.y).any()
    ]
    return Chart(
        key, title, text, tuple(series), label, percent=shares, from_zero=zero
    )  # fmt: skip


def _by_size(runs: Sequence[RunProfile]) -> Chart:
    series = [ChartSeries(run.name, run.style, run.by_size) for run in runs if run.by_size is not None]
    text = (
        "The share of groups of each size that would be dead at the policy of each prompt's first group: counted up to "
        "its rollouts, estimated beyond. The bands are 90% intervals, as apportion forecast has them."
    )
    return Chart(
        "dead_by_size", "Dead groups by the size of a group", text, tuple(series), "share of groups",
        "rollouts of a group", from_zero=True, numbers=True,
    )  # fmt: skip


def _calibration(runs: Sequence[RunProfile]) -> Chart:
    known = [(run, run.calibration) for run in runs if run.calibration is not None]
    series = [ChartSeries(run.name, run.style, own.curve, {"groups": [*map(count, own.groups)]}) for run, own in known]
    text = (
        "A line on the dotted one was predicted rightly. Above it, prompts were easier than predicted. "
        "The bands are 95% intervals."
    )
    text = " ".join([text, *(f"{run.name}: {own.error_name} {own.error:.3f}." for run, own in known)])
    return Chart(
        "calibration", "Predicted against observed success", text, tuple(series), "observed success",
        "predicted success",
    )  # fmt: skip


def _advice(name: str, advice: AdviceList) -> ReportTable:
    rows = [
        (each.change, each.measure, f"{each.before:.2f}", f"{each.after:.2f}", spanned_text(each.saving, ".1%"))
        for each in (*advice.recommended, *advice.considered)
        if np.isfinite(each.saving.value)
    ]
    conditions: dict[str, list[str]] = {}
    for each in advice.recommended:
        conditions.setdefault(each.condition, []).append(each.change)
    notes = [
        "The share of the rollouts that would have been saved, replayed with what was known before each step. "
        f"Intervals are of {percent(advice.confidence, 1)} over prompts, so that all hold together with 95%.",
        *(f"{'; '.join(changes)}: {condition}" for condition, changes in conditions.items()),
        *(
            f"{each.change}: in TRL, {each.code.trainer}. In verl, {each.code.command} {each.code.note}".rstrip()
            for each in advice.recommended
        ),
    ]
    header = ("change", "measure", "before", "after", "rollouts saved")
    return table_of(f"What would have helped {name}", header, rows, notes, left=2)


def _bands(run: RunProfile, bands: Floats) -> Chart:
    series = [ChartSeries(name, at, plain_curve(run.places, bands[:, at])) for at, name in enumerate(BAND_NAMES)]
    weights = np.diff(run.places["rollouts"], prepend=0)
    shares = weights @ bands / max(weights.sum(), 1)
    text = (
        f"Shares of the rollouts by the success of their prompts. {run.difficulty} Over the whole run, "
        f"{percent(shares[0])} went to prompts {BAND_NAMES[0]} and {percent(shares[-1])} to prompts {BAND_NAMES[-1]}."
    )
    return Chart(
        f"bands_{run.style + 1}", f"Where the rollouts of {run.name} went", text, tuple(series),
        "share of rollouts", from_zero=True,
    )  # fmt: skip


def _mean(runs: Sequence[RunProfile]) -> str:
    """Return the name for a mean of rewards: success if all are 0 or 1."""
    return "success" if all(run.binary for run in runs) else "mean reward"


def _reward(run: RunProfile, mean: float | None, digits: int = 0) -> str:
    """Return a mean reward as text; a share as a percentage."""
    return percent(mean, digits) if run.shares or mean is None else f"{mean:.3g}"


def _wasted_share(run: RunProfile) -> str:
    if run.totals.dead is None:
        return "-"
    return percent(run.totals.dead.value) + (" of groups" if run.totals.unit == "groups" else "")
