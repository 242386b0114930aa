"""The charts and tables of votes, from their profiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from apportion.report.charts import Chart, ChartSeries, ReportTable, count, percent
from apportion.report.curves import Curve, plain_curve, wilson
from apportion.report.votes import VoteProfile

Styled = Sequence[tuple[int, VoteProfile]]
"""Votes with their places in the table of runs, which decide how they are drawn."""

POINTS = 200
"""The most points of a curve over questions."""


def vote_charts(votes: Styled) -> list[Chart]:
    """Return the charts of ``votes``. A chart without any value is left out."""
    votes = [(style, vote) for style, vote in votes if len(vote.samples)]
    found = [_samples(votes), _agreement(votes), _right(votes), _lost(votes)] if votes else []
    return [chart for chart in found if chart is not None]


def votes_table(votes: Sequence[VoteProfile]) -> ReportTable:
    """Return the table of votes."""
    header = ("vote", "questions", "not finished", "samples", "of full votes", "saved", "agreement", "accuracy")
    rows = [
        (
            vote.name,
            count(len(vote.samples)),
            count(vote.open_questions),
            count(vote.samples.sum()),
            count(None if vote.max_samples is None else vote.max_samples * len(vote.samples)),
            percent(vote.saved, 1),
            percent(_mean(vote.share), 1),
            percent(_mean(vote.correct), 1),
        )
        for vote in votes
    ]
    return ReportTable("Votes", header, tuple(rows), "lrrrrrrr")


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
    """Return the share of the questions that took at most so many samples."""
    series, rows = [], []
    for style, vote in votes:
        places = np.unique(np.r_[0, vote.samples, vote.max_samples or vote.samples.max()])
        shares = np.searchsorted(np.sort(vote.samples), places, side="right") / len(vote.samples)
        series.append(ChartSeries(vote.name, style, plain_curve({"": _stairs(places)[1:]}, _stairs(shares)[:-1])))
        rows += [(vote.name, count(place), percent(share, 1)) for place, share in zip(places, shares, strict=True)]
    most = "; ".join(f"{vote.name}: {vote.max_samples}" for _, vote in votes if vote.max_samples is not None)
    return Chart(
        "samples", "Samples by question",
        "The share of the questions that were answered with this number of samples or fewer."
        + (f" A full vote takes {most}." if most else ""),
        "points", tuple(series),
        ReportTable("Samples by question", ("vote", "samples", "share of questions"), tuple(rows), "lrr"),
        x_label="samples", y_label="share of questions", unit=True,
    )  # fmt: skip


def _agreement(votes: Styled) -> Chart:
    """Return the share of the questions whose winner had at most this share of the votes."""
    series, rows = [], []
    for style, vote in votes:
        known = np.sort(vote.share[np.isfinite(vote.share)])
        if not len(known):
            continue
        places = np.unique(np.r_[0, known[np.linspace(0, len(known) - 1, min(len(known), POINTS)).astype(int)], 1])
        shares = np.searchsorted(known, places, side="right") / len(known)
        series.append(ChartSeries(vote.name, style, plain_curve({"": _stairs(places)[1:]}, _stairs(shares)[:-1])))
        rows += [(vote.name, percent(at, 1), percent(share, 1)) for at, share in zip(places, shares, strict=True)]
    header = ("vote", "winner's share", "share of questions")
    return Chart(
        "agreement", "Agreement",
        "The share of the questions whose winner had this share of the votes or less. Low curves mean agreement.",
        "points", tuple(series), ReportTable("Agreement", header, tuple(rows), "lrr"),
        x_label="winner's share of its votes", y_label="share of questions", unit=True, x_percent=True,
    )  # fmt: skip


def _right(votes: Styled) -> Chart | None:
    """Return the share of right answers by fifth of the agreement."""
    series, rows = [], []
    for style, vote in votes:
        known = np.isfinite(vote.share) & np.isfinite(vote.correct)
        if not known.any():
            continue
        share, correct = vote.share[known], vote.correct[known]
        fifth = np.clip((share * 5).astype(int), 0, 4)
        number = np.bincount(fifth, minlength=5).astype(float)
        has = number > 0
        mean, right = (np.bincount(fifth, values, minlength=5)[has] / number[has] for values in (share, correct))
        low, high = wilson(right, number[has])
        series.append(ChartSeries(vote.name, style, Curve({"": mean}, right, low, high)))
        columns = zip(mean, right, low, high, number[has], strict=True)
        rows += [(vote.name, *(percent(value, 1) for value in values), count(size)) for *values, size in columns]
    if not series:
        return None
    header = ("vote", "winner's share", "right", "from", "to", "questions")
    return Chart(
        "right", "Right answers by agreement",
        "The share of right answers among questions with a known answer, by fifth of the winner's share, with Wilson's "
        "95% interval.",
        "points", tuple(series), ReportTable("Right answers by agreement", header, tuple(rows), "lrrrrr"),
        x_label="winner's share of its votes", y_label="share of right answers", unit=True, diagonal=True,
        x_percent=True,
    )  # fmt: skip


def _lost(votes: Styled) -> Chart:
    """Return the shares of the samples that were lost."""
    series, rows = [], []
    for style, vote in votes:
        total = float(vote.samples.sum())
        for name, numbers in (("failed", vote.failed), ("unparsed", vote.unparsed), ("truncated", vote.truncated)):
            lost, size = np.array([float(numbers.sum())]), np.array([max(total, 1)])
            share = lost / size
            low, high = wilson(share, size)
            words = name if len(votes) == 1 else f"{vote.name}, {name}"
            series.append(ChartSeries(words, style, Curve({}, share, low, high)))
            rows.append((vote.name, name, count(lost[0]), percent(float(share[0]), 1)))
    return Chart(
        "lost", "Samples without an answer",
        "Failed samples never arrived. Unparsed ones hold no answer. Truncated ones reached their maximum length.",
        "bars", tuple(series),
        ReportTable("Samples without an answer", ("vote", "kind", "samples", "share"), tuple(rows), "llrr"),
        x_label="share of samples",
    )  # fmt: skip


def _stairs(values: np.ndarray) -> np.ndarray:
    """Return each value twice, to draw a step at each."""
    return np.repeat(values.astype(float), 2)


def _mean(values: np.ndarray) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None
