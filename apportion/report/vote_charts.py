"""The charts and tables of votes, from their profiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from apportion.report.charts import Chart, ChartSeries, ReportTable, calibration_chart, count, percent, table_of
from apportion.report.curves import Curve, plain_curve, wilson
from apportion.report.votes import VoteProfile
from apportion.types import Counts, Floats

Styled = Sequence[tuple[int, VoteProfile]]
"""Votes with their places in the table of runs, which decide how they are drawn."""

POINTS = 200
"""The most points of a curve over questions."""


def vote_charts(votes: Styled) -> list[Chart]:
    """Return the charts of ``votes``, without those of no values."""
    votes = [(style, vote) for style, vote in votes if len(vote.samples)]
    return [_samples(votes), _agreement(votes), _right(votes), _lost(votes)]


def votes_table(votes: Sequence[VoteProfile]) -> ReportTable:
    """Return the table of votes."""
    header = ("vote", "questions", "not finished", "samples", "of full votes", "saved", "agreement", "accuracy")
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
        )
        for vote in votes
    )
    return table_of("Votes", header, rows)


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
    most = "; ".join(f"{vote.name}: {vote.max_samples}" for _, vote in votes if vote.max_samples is not None)
    text = "The share of the questions that were answered with this number of samples or fewer."
    text += f" A full vote takes {most}." if most else ""
    found = [
        (style, vote, vote.samples, np.unique(np.r_[0, vote.samples, vote.max_samples or vote.samples.max()]))
        for style, vote in votes
    ]
    return _distribution("samples", "Samples by question", text, found, count, ("samples", "samples"))


def _agreement(votes: Styled) -> Chart:
    text = "The share of the questions whose winner had this share of the votes or less. Low curves mean agreement."
    found = []
    for style, vote in votes:
        known = np.sort(vote.share[np.isfinite(vote.share)])
        if len(known):
            some = known[np.linspace(0, len(known) - 1, min(len(known), POINTS)).astype(int)]
            found.append((style, vote, known, np.unique(np.r_[0, some, 1])))
    names = ("winner's share", "winner's share of its votes")
    return _distribution("agreement", "Agreement", text, found, lambda value: percent(value, 1), names, True)


def _distribution(
    key: str,
    title: str,
    text: str,
    found: Sequence[tuple[int, VoteProfile, Floats | Counts, Floats | Counts]],
    shown: Callable[[float], str],
    names: tuple[str, str],
    x_percent: bool = False,
) -> Chart:
    """Return the share of the questions with at most a value, for each vote with its values and some places."""
    series, rows = [], []
    for style, vote, values, places in found:
        shares = np.searchsorted(np.sort(values), places, side="right") / len(values)
        stairs = np.repeat(places.astype(float), 2)[1:], np.repeat(shares, 2)[:-1]
        series.append(ChartSeries(vote.name, style, plain_curve({"": stairs[0]}, stairs[1])))
        rows += [(vote.name, shown(at), percent(share, 1)) for at, share in zip(places, shares, strict=True)]
    return Chart(
        key, title, text, "points", tuple(series), table_of(title, ("vote", names[0], "share of questions"), rows),
        x_label=names[1], y_label="share of questions", unit=True, x_percent=x_percent,
    )  # fmt: skip


def _right(votes: Styled) -> Chart:
    """Return the share of right answers by fifth of the agreement."""
    found = []
    for style, vote in votes:
        known = np.isfinite(vote.share) & np.isfinite(vote.correct)
        share, correct = vote.share[known], vote.correct[known]
        fifth = np.clip((share * 5).astype(int), 0, 4)
        number = np.bincount(fifth, minlength=5).astype(float)
        has = number > 0
        mean, right = (np.bincount(fifth, values, minlength=5)[has] / number[has] for values in (share, correct))
        if len(share):
            curve = Curve({"": mean}, right, *wilson(right, number[has]))
            found.append((ChartSeries(vote.name, style, curve), number[has]))
    text = (
        "The share of right answers among questions with a known answer, by fifth of the winner's share, with Wilson's "
        "95% interval."
    )
    header = ("vote", "winner's share", "right", "from", "to", "questions")
    labels = ("winner's share of its votes", "share of right answers")
    return calibration_chart("right", "Right answers by agreement", text, found, header, labels)


def _lost(votes: Styled) -> Chart:
    """Return the shares of the samples that were lost."""
    series, rows = [], []
    for style, vote in votes:
        total = np.array([max(float(vote.samples.sum()), 1)])
        for name, numbers in (("failed", vote.failed), ("unparsed", vote.unparsed), ("truncated", vote.truncated)):
            share = numbers.sum() / total
            words = name if len(votes) == 1 else f"{vote.name}, {name}"
            series.append(ChartSeries(words, style, Curve({}, share, *wilson(share, total))))
            rows.append((vote.name, name, count(numbers.sum()), percent(float(share[0]), 1)))
    title = "Samples without an answer"
    text = "Failed samples never arrived. Unparsed ones hold no answer. Truncated ones reached their maximum length."
    table = table_of(title, ("vote", "kind", "samples", "share"), rows, "llrr")
    return Chart("lost", title, text, "bars", tuple(series), table, x_label="share of samples")


def _mean(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None
