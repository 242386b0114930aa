"""What a vote cost beside the full one, and how good it is: over all finished questions, those of earlier runs too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from apportion.evaluation import bootstrap_interval
from apportion.vote.ballot import Ballot, total

WIDTH = 100
REPEATS = "every sample of a question was the same text: does the server sample, or ignore the temperature?"


class Accuracy(NamedTuple):
    """The share of the questions with a gold answer that got it, with a 95% bootstrap interval over questions."""

    questions: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Prices:
    """What a million tokens cost, of prompts and of completions, in any currency."""

    prompt: float
    completion: float

    def __post_init__(self) -> None:
        if not (self.prompt >= 0 and self.completion >= 0):
            raise ValueError(f"prices must be at least 0, got {self.prompt} and {self.completion}; 0 is free")

    def cost(self, prompt_tokens: float, completion_tokens: float) -> float:
        """Of so many tokens.

        >>> Prices(prompt=0.5, completion=2.0).cost(1_000_000, 500_000)
        1.5
        """
        return (prompt_tokens * self.prompt + completion_tokens * self.completion) / 1_000_000


def make_prices(prompt: float | None, completion: float | None) -> Prices | None:
    """The prices, None without any; ValueError for one without the other."""
    if prompt is None and completion is None:
        return None
    if prompt is None or completion is None:
        raise ValueError(
            f"prices must be given for prompts and for completions, got {prompt} and {completion}; 0 is free"
        )
    return Prices(prompt, completion)


@dataclass(frozen=True)
class Summary:
    """Totals over ``finished`` of ``questions``.

    ``full_`` is the fixed budget of ``max_samples`` samples a question, exact for samples. Its completion tokens are an
    estimate, each question's mean per sample that arrived, times ``max_samples``; its prompt tokens count the prompt
    once a sample, or once in all where samples came several a request: stopping early in waves may then send *more*
    prompts than the full vote. ``*_saved`` are shares of it. ``waves``, ``share`` (of the votes, that the winner has)
    and ``disagreement`` (the probability, at most, that the full vote would choose another answer) are means over
    questions. None is what is not known: tokens where the server does not count them, means over nothing. Of the last
    run alone are ``seconds`` and ``wasted_completion_tokens``, those of completions that are in no ballot. ``repeats``
    says whether every question with three samples or more got the same text each time, as from a server that decodes
    greedily; None without such questions.
    """

    questions: int
    finished: int
    max_samples: int
    samples: int
    full_samples: int
    samples_saved: float | None
    prompt_tokens: int | None
    full_prompt_tokens: int | None
    completion_tokens: int | None
    full_completion_tokens: int | None
    completion_tokens_saved: float | None
    waves: float | None
    share: float | None
    disagreement: float | None
    worst_disagreement: float | None
    accuracy: Accuracy | None
    failed: int
    unparsed: int
    cancelled: int
    repeats: bool | None
    wasted_completion_tokens: int
    seconds: float


def summarise(
    ballots: Sequence[Ballot], questions: int, max_samples: int, seconds: float, wasted_tokens: int = 0
) -> Summary:
    """The totals of the finished ``ballots`` of a vote on so many ``questions``.

    The last run took ``seconds``, and ``wasted_tokens`` for completions that are in no ballot.
    """
    samples, full = sum(ballot.samples for ballot in ballots), max_samples * len(ballots)
    completion = total(ballot.completion_tokens for ballot in ballots) if ballots else None
    full_completion = _full_completions(ballots, max_samples)
    risks = [ballot.disagreement for ballot in ballots]
    return Summary(
        questions=questions,
        finished=len(ballots),
        max_samples=max_samples,
        samples=samples,
        full_samples=full,
        samples_saved=_saved(samples, full),
        prompt_tokens=total(ballot.prompt_tokens for ballot in ballots) if ballots else None,
        full_prompt_tokens=_full_prompts(ballots, max_samples),
        completion_tokens=completion,
        full_completion_tokens=full_completion,
        completion_tokens_saved=_saved(completion, full_completion),
        waves=_mean(ballot.waves for ballot in ballots),
        share=_mean(ballot.share for ballot in ballots if ballot.share is not None),
        disagreement=_mean(risks),
        worst_disagreement=max(risks, default=None),
        accuracy=_accuracy([ballot.correct for ballot in ballots if ballot.correct is not None]),
        failed=sum(ballot.failed for ballot in ballots),
        unparsed=sum(ballot.unparsed for ballot in ballots),
        cancelled=sum(ballot.cancelled for ballot in ballots),
        repeats=all(told) if (told := [ballot.repeats for ballot in ballots if ballot.repeats is not None]) else None,
        wasted_completion_tokens=wasted_tokens,
        seconds=seconds,
    )


def summary_json(summary: Summary, prices: Prices | None = None) -> str:
    """One JSON object; null where something is not known. With ``prices`` also cost and full_cost."""
    accuracy = None if summary.accuracy is None else summary.accuracy._asdict()
    cost = {} if prices is None else dict(zip(("cost", "full_cost"), _costs(summary, prices), strict=True))
    return json.dumps(asdict(summary) | {"accuracy": accuracy} | cost, allow_nan=False)


def summary_text(summary: Summary, terminal: bool, prices: Prices | None = None) -> str:
    """The summary as a table, drawn on a ``terminal``; what is not known is left out."""
    return table_text([(name, value) for name, value in _rows(summary, prices) if value], terminal)


def table_text(rows: Iterable[tuple[str, str]], terminal: bool) -> str:
    """Names and values as a table, drawn on a ``terminal``.

    >>> print(table_text([("samples", "40 of 64"), ("waves", "3.2")], terminal=False))
    samples  40 of 64
    waves    3.2
    """
    drawn = {"box": box.ROUNDED} if terminal else {"box": None, "padding": (0, 2, 0, 0)}
    table = Table(show_header=False, **drawn)
    for name, value in rows:
        table.add_row(name, value)
    console = Console(width=None if terminal else WIDTH, highlight=False, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())


def _rows(summary: Summary, prices: Prices | None) -> Iterable[tuple[str, str]]:
    left = summary.questions - summary.finished
    yield "questions", f"{summary.finished}" + (f" of {summary.questions}; {left} not finished" if left else "")
    yield "samples", _beside(summary.samples, summary.full_samples, summary.samples_saved, "")
    for name, used, full in (
        ("prompt tokens", summary.prompt_tokens, summary.full_prompt_tokens),
        ("completion tokens", summary.completion_tokens, summary.full_completion_tokens),
    ):
        yield name, _beside(used, full, _saved(used, full), "about ")
    if prices is not None:
        paid, costs = _costs(summary, prices)
        yield "cost", "" if paid is None or costs is None else f"{paid:,.2f} of about {costs:,.2f} for the full vote"
    yield "waves a question", _number(summary.waves, ".2f")
    yield "votes for the winner", _number(summary.share, ".1%")
    yield "other than the full vote", _risk(summary)
    yield "accuracy", _right(summary.accuracy)
    lost = {"failed": summary.failed, "without an answer": summary.unparsed, "cancelled": summary.cancelled}
    yield "samples lost", ", ".join(f"{count} {name}" for name, count in lost.items() if count)
    yield "warning", REPEATS if summary.repeats else ""
    wasted = summary.wasted_completion_tokens
    yield "tokens wasted", f"{wasted:,} of completions that were not counted" if wasted else ""
    yield "seconds", f"{summary.seconds:.1f}"


def _costs(summary: Summary, prices: Prices) -> tuple[float, float] | tuple[None, None]:
    """What was paid for, and what the full vote would cost; None where tokens are not known."""
    used, full = summary.prompt_tokens, summary.full_prompt_tokens
    if used is None or full is None or summary.completion_tokens is None or summary.full_completion_tokens is None:
        return None, None
    return prices.cost(used, summary.completion_tokens), prices.cost(full, summary.full_completion_tokens)


def _beside(used: int | None, full: int | None, saved: float | None, about: str) -> str:
    if used is None or full is None or saved is None:
        return ""
    share = f"{saved:.1%} saved" if saved >= 0 else f"{-saved:.1%} more"
    return f"{used:,} of {about}{full:,} for the full vote: {share}"


def _risk(summary: Summary) -> str:
    if summary.disagreement is None or summary.worst_disagreement is None:
        return ""
    return f"expected in at most {summary.disagreement:.2%} of the questions; {summary.worst_disagreement:.2%} at worst"


def _right(accuracy: Accuracy | None) -> str:
    if accuracy is None:
        return ""
    interval = f"95% interval {accuracy.low:.1%} to {accuracy.high:.1%}"
    return f"{accuracy.mean:.1%} of {accuracy.questions} with a gold answer ({interval})"


def _number(value: float | None, how: str) -> str:
    return "" if value is None else format(value, how)


def _full_prompts(ballots: Sequence[Ballot], max_samples: int) -> int | None:
    """Prompt tokens of the full vote, asked for as these samples were."""
    prompts = total(ballot.prompt_length for ballot in ballots) if ballots else None
    if prompts is None or any(ballot.shares_prompts for ballot in ballots):
        return prompts
    return max_samples * prompts


def _full_completions(ballots: Sequence[Ballot], max_samples: int) -> int | None:
    """Completion tokens of the full vote, were its completions as long as those that arrived."""
    tokens = [(ballot.completion_tokens, max(ballot.samples - ballot.failed, 1)) for ballot in ballots]
    means = [count / arrived for count, arrived in tokens if count is not None]
    return round(max_samples * sum(means)) if means and len(means) == len(ballots) else None


def _saved(used: int | None, full: int | None) -> float | None:
    return None if used is None or not full else 1 - used / full


def _mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None


def _accuracy(correct: Sequence[bool]) -> Accuracy | None:
    if not correct:
        return None
    interval = bootstrap_interval([float(right) for right in correct])
    return Accuracy(len(correct), sum(correct) / len(correct), interval.low, interval.high)
