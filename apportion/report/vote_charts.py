"""The charts and tables of votes, from their profiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from apportion.report.charts import Chart, ChartSeries, ReportTable, calibration_chart, count, percent, table_of
from apportion.report.curves import Curve, plain_curve, wilson
from apportion.report.votes import VoteProfile
from apportion.types import Counts, Floats

Styled = Sequence[tuple[int, VoteProfile]]
"""Votes with their places in the table of runs, which decide how they are drawn."""

POINTS = 200
"""The most points of a curve over numbers of samples."""


def vote_charts(votes: Styled) -> list[Chart]:
    """Return the charts of ``votes``, without those of no values."""
    votes = [(style, vote) for style, vote in votes if len(vote.samples)]
    return [_samples(votes), _right(votes)]


def votes_table(votes: Sequence[VoteProfile]) -> ReportTable:
    """Return the table of votes.

    Failed samples never arrived; unparsed ones hold no answer; truncated ones reached their maximum length.
    """
    header = (
        "vote",
        "questions",
        "not finished",
        "samples",
        "of full votes",
        "saved",
        "votes for the winner",
        "accuracy",
    )
    rows = (
        (
            vote.name,
            count(len(vote.samples)),
            count(vote.open_questions),
            count(vote.samples.sum()),
            count(None if vote.max_samples is None else vote.max_samples * len(vote.samples)),
            percent(vote.saved, 1),
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
    agreement = _mean(vote.share)
    if agreement is not None:
        text += f". On average {round(100 * agreement)} of 100 votes went to the winner"
    if vote.open_questions:
        text += f". Not finished: {count(vote.open_questions)}, with {count(vote.open_samples)} samples"
    return f"{text}."


def _samples(votes: Styled) -> Chart:
    full = "; ".join(f"{vote.name}: {vote.max_samples}" for _, vote in votes if vote.max_samples is not None)
    text = "The share of the questions that were answered with this number of samples or fewer."
    text += f" A full vote takes {full}." if full else ""
    series = []
    for style, vote in votes:
        most = vote.max_samples or vote.samples.max()
        places = np.unique(np.linspace(0, most, min(most, POINTS) + 1).astype(int))
        shares = np.searchsorted(np.sort(vote.samples), places, side="right") / len(vote.samples)
        series.append(ChartSeries(vote.name, style, plain_curve({"": places.astype(float)}, shares)))
    return Chart(
        "samples", "Samples by question", text, "lines", tuple(series), x_label="samples",
        y_label="share of questions", label="vote", unit=True,
    )  # fmt: skip


def _right(votes: Styled) -> Chart:
    """Return the share of right answers by fifth of the votes for the winner."""
    series = []
    for style, vote in votes:
        known = np.isfinite(vote.share) & np.isfinite(vote.correct)
        share, correct = vote.share[known], vote.correct[known]
        fifth = np.clip((share * 5).astype(int), 0, 4)
        number = np.bincount(fifth, minlength=5).astype(float)
        has = number > 0
        mean, right = (np.bincount(fifth, values, minlength=5)[has] / number[has] for values in (share, correct))
        if len(share):
            curve = Curve({"": mean}, right, *wilson(right, number[has]))
            series.append(ChartSeries(vote.name, style, curve, {"questions": [*map(count, number[has])]}))
    text = (
        "The share of right answers among questions with a known answer, by fifth of the winner's share, with Wilson's "
        "95% interval."
    )
    labels = ("winner's share of its votes", "share of right answers", "vote")
    return calibration_chart("right", "Right answers by the votes for the winner", text, series, labels)


def _lost(numbers: Counts, samples: Counts) -> str:
    """Return how many samples were lost, and their share."""
    return f"{count(numbers.sum())} ({percent(float(numbers.sum() / max(samples.sum(), 1)), 1)})"


def _mean(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None
