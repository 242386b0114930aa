"""A report: runs and votes with their summaries, tables and charts. It is shown as a page, as text or as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from apportion.report.charts import Chart, ReportTable
from apportion.report.profile import RunProfile
from apportion.report.training_charts import runs_table, summary_of, training_charts, training_tables
from apportion.report.vote_charts import vote_charts, vote_summary, votes_table
from apportion.report.votes import VoteProfile


@dataclass(frozen=True, eq=False)
class RunReport:
    """What is shown.

    Args:
        names: the runs and votes in order. The place of a name decides how it is drawn.
        summaries: a sentence for each.
        notes: what is unknown, and about which.
        overviews: the table of runs, and the table of votes.
        charts: the charts.
        tables: tables that belong to no chart.
        last_step: the last step of any run; -1 without any.
    """

    names: tuple[str, ...]
    summaries: tuple[str, ...]
    notes: tuple[str, ...]
    overviews: tuple[ReportTable, ...]
    charts: tuple[Chart, ...]
    tables: tuple[ReportTable, ...]
    last_step: int


def report_of(profiles: Sequence[RunProfile | VoteProfile]) -> RunReport:
    """Return the report of runs and votes, in their order. Raises ValueError without any."""
    if not profiles:
        raise ValueError("a report needs a run, got none; name one")
    runs = [(place, each) for place, each in enumerate(profiles) if isinstance(each, RunProfile)]
    votes = [(place, each) for place, each in enumerate(profiles) if isinstance(each, VoteProfile)]
    overviews = [runs_table([run for _, run in runs])] if runs else []
    overviews += [votes_table([vote for _, vote in votes])] if votes else []
    return RunReport(
        names=tuple(each.name for each in profiles),
        summaries=tuple(summary_of(each) if isinstance(each, RunProfile) else vote_summary(each) for each in profiles),
        notes=tuple(_notes([run for _, run in runs])),
        overviews=tuple(overviews),
        charts=(*training_charts(runs), *vote_charts(votes)),
        tables=tuple(training_tables(runs)),
        last_step=max((run.totals.last_step for _, run in runs), default=-1),
    )


def _notes(runs: Sequence[RunProfile]) -> Iterator[str]:
    """Yield each note once, with the runs that it is about unless it is about all."""
    for note in dict.fromkeys(note for run in runs for note in run.notes):
        names = [run.name for run in runs if note in run.notes]
        yield note if len(names) == len(runs) else f"{', '.join(names)}: {note}"
