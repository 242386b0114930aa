"""The charts and tables of votes, from their profiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from apportion.report.calibration import calibrate
from apportion.report.charts import Chart, ChartSeries, ReportTable, count, percent, table_of
from apportion.report.votes import VoteProfile
from apportion.types import Counts, Floats


def right_chart(votes: Sequence[VoteProfile]) -> Chart:
    """Return the share of right answers by tenth of the votes for the winner."""
    series = []
    for vote in votes:
        known = np.isfinite(vote.correct)
        found = calibrate(vote.share, np.where(known, vote.correct, 0), known.astype(np.int64), np.arange(len(known)))
        if found is not None:
            series.append(ChartSeries(vote.name, vote.style, found.curve, {"questions": [*map(count, found.groups)]}))
    text = (
        "The share of right answers among questions with a known answer, by tenth of the winner's share, with Wilson's "
        "95% interval."
    )
    return Chart(
        "right", "Right answers by the votes for the winner", text, tuple(series), "share of right answers",
        "winner's share of its votes", "vote",
    )  # fmt: skip


def votes_table(votes: Sequence[VoteProfile]) -> ReportTable:
    """Return the table of votes.

    Failed samples never arrived; unparsed ones hold no answer; truncated ones reached their maximum length.
    """
    header = (
        "vote",
        "questions",
        "not finished",
        "samples",
        "saved",
        "full votes",
        "votes for the winner",
        "accuracy",
    )
    rows = (
        (
            vote.name,
            count(len(vote.samples)),
            count(vote.open_questions),
            count(vote.samples.sum()),
            percent(vote.saved, 1),
            count(None if vote.max_samples is None else (vote.samples >= vote.max_samples).sum()),
            percent(_mean(vote.share), 1),
            percent(_mean(vote.correct), 1),
            *(_lost(own, vote.samples) for own in (vote.failed, vote.unparsed, vote.truncated)),
        )
        for vote in votes
    )
    return table_of("Votes", (*header, "failed", "unparsed", "truncated"), rows)


def vote_summary(vote: VoteProfile) -> str:
    """Return the vote in one sentence: the samples that it saved."""
    if not len(vote.samples):
        return f"no question is finished yet; {count(vote.open_samples)} samples of {vote.open_questions} have arrived."
    text = f"{count(vote.samples.sum())} samples answered {count(len(vote.samples))} questions"
    if vote.saved is not None:
        text += f", {percent(vote.saved)} fewer than full votes of {vote.max_samples}"
    return f"{text}."


def _lost(numbers: Counts, samples: Counts) -> str:
    """Return how many samples were lost, and their share."""
    return f"{count(numbers.sum())} ({percent(float(numbers.sum() / max(samples.sum(), 1)), 1)})"


def _mean(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None
