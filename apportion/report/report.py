"""A report: runs and votes with their summaries, tables and charts. It is shown as a page or as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from apportion.diagnosis.statements import advice_statements, health_statements, phantom_statements
from apportion.report.charts import Chart, ReportTable, hours
from apportion.report.profile import RunProfile, RunTotals
from apportion.report.training_charts import run_tables, runs_table, summary_of, training_charts
from apportion.report.vote_charts import right_chart, vote_summary, votes_table
from apportion.report.votes import VoteProfile


@dataclass(frozen=True, eq=False)
class RunReport:
    """The content of a report.

    Args:
        names: the runs and votes in order. The place of a name decides how it is drawn.
        summaries: a sentence for each.
        decisions: for each, what to know first: signs of sickness, and the advice if it was asked for.
        notes: what is unknown, and about which.
        overviews: the table of runs, and the table of votes.
        charts: the charts.
        tables: tables that belong to no chart.
    """

    names: tuple[str, ...]
    summaries: tuple[str, ...]
    decisions: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    overviews: tuple[ReportTable, ...]
    charts: tuple[Chart, ...]
    tables: tuple[ReportTable, ...]


def report_of(profiles: Sequence[RunProfile | VoteProfile], price_per_hour: float | None = None) -> RunReport:
    """Return the report of runs and votes, in their order. Raises ValueError without any, and for a wrong price.

    ``price_per_hour`` is that of all GPUs of a run, in any currency; with it the cost of each run is said.
    """
    if price_per_hour is not None and not 0 <= price_per_hour < float("inf"):
        raise ValueError(f"price_per_hour must be at least 0, got {price_per_hour}; give that of all GPUs of the run")
    if not profiles:
        raise ValueError("a report needs a run, got none; name one")
    profiles = [replace(each, style=place) for place, each in enumerate(profiles)]
    runs = [each for each in profiles if isinstance(each, RunProfile)]
    votes = [each for each in profiles if isinstance(each, VoteProfile)]
    overviews = [runs_table(runs)] if runs else []
    overviews += [votes_table(votes)] if votes else []
    return RunReport(
        names=tuple(each.name for each in profiles),
        summaries=tuple(summary_of(each) if isinstance(each, RunProfile) else vote_summary(each) for each in profiles),
        decisions=tuple(tuple(_decisions(each, price_per_hour)) for each in profiles),
        notes=tuple(_notes(runs)),
        overviews=tuple(overviews),
        charts=tuple(chart for chart in (*training_charts(runs), right_chart(votes)) if chart.series),
        tables=tuple(table for run in runs for table in run_tables(run)),
    )


def _decisions(profile: RunProfile | VoteProfile, price: float | None) -> Iterator[str]:
    if isinstance(profile, VoteProfile):
        return
    if price is not None:
        yield _cost(profile.totals, price)
    if profile.health is not None:
        yield from health_statements(profile.health)
    yield from phantom_statements(profile.phantoms, profile.read)
    if profile.advice is not None:
        yield from advice_statements(profile.advice)


def _cost(totals: RunTotals, price: float) -> str:
    """Return the cost of a run, and the part that dead groups took."""
    if totals.hours is None or totals.steps < 2:
        return "Cost: unknown, because the time of the steps was not recorded."
    # the log has the end of each step, so one interval fewer than steps
    spent = totals.hours * totals.steps / (totals.steps - 1)
    text = f"Cost: {price * spent:,.2f} for {hours(spent)} hours"
    dead, unit = totals.dead_tokens, "completion tokens"
    if dead is None:
        dead, unit = totals.dead and totals.dead.value, "rollouts"
    if dead is None or not math.isfinite(dead):
        return f"{text}."
    return f"{text}; {price * spent * dead:,.2f} of that went into dead groups, by their {unit}."


def _notes(runs: Sequence[RunProfile]) -> Iterator[str]:
    """Yield each note once, preceded by the runs that it is about, unless it is about all."""
    for note in dict.fromkeys(note for run in runs for note in run.notes):
        names = [run.name for run in runs if note in run.notes]
        yield note if len(names) == len(runs) else f"{', '.join(names)}: {note}"
