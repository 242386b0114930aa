"""The cost of a vote compared with the full vote, and its accuracy, over all finished questions of all runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

from apportion.answers import JudgeUsage
from apportion.runs.json_text import json_text, plain
from apportion.runs.text_table import text_table
from apportion.vote.ballot import Ballot, total
from apportion.vote.right import RightWinners, exact_interval

REPEATS = (
    "every sample of a question, or of a request, was the same text: does the server sample, or ignore the "
    "temperature? If it gives one seed to all samples of a request, use --wave 1"
)
ONE_SEED = 0.9
"""From this share of questions with one text per request on, the server is taken to repeat itself. A certain model
gives the same text for a few questions without a fault."""


class Accuracy(NamedTuple):
    """The share of right answers among questions with a gold answer, with Clopper and Pearson's 95% interval."""

    questions: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Prices:
    """The price of a million tokens, of prompts and of completions, in any currency."""

    prompt: float
    completion: float

    def __post_init__(self) -> None:
        if not (0 <= self.prompt < inf and 0 <= self.completion < inf):
            raise ValueError(
                f"prices must be finite and at least 0, got {self.prompt} and {self.completion}; 0 is free"
            )

    def cost(self, prompt_tokens: float, completion_tokens: float) -> float:
        """Return the cost of these tokens.

        >>> Prices(prompt=0.5, completion=2.0).cost(1_000_000, 500_000)
        1.5
        """
        return (prompt_tokens * self.prompt + completion_tokens * self.completion) / 1_000_000


def make_prices(prompt: float | None, completion: float | None) -> Prices | None:
    """Return the prices, or None without any. Raises ValueError for one without the other."""
    if prompt is None and completion is None:
        return None
    if prompt is None or completion is None:
        raise ValueError(
            f"prices must be given for prompts and for completions, got {prompt} and {completion}; 0 is free"
        )
    return Prices(prompt, completion)


COUNTED = ("samples", "failed", "unparsed", "truncated", "cancelled")
"""The counts of a ballot that are summed."""


@dataclass(frozen=True)
class Summary:
    """Totals over ``finished`` of ``questions``.

    ``full_`` fields are for the full vote, which takes ``max_samples`` samples of each question. ``full_samples`` is
    exact. ``full_completion_tokens`` is an estimate: each question's mean per sample that arrived, times
    ``max_samples``. ``full_prompt_tokens`` counts the prompt once a sample, or once in all if several samples came from
    one request; stopping early in waves may then send more prompts than the full vote. ``_saved`` fields are shares of
    the full vote.

    ``waves``, ``share`` (the winner's share of the votes) and ``disagreement`` (the probability that the full vote
    would choose another answer, as in ``Ballot``) are means over questions. Unknown values are None: tokens if the
    server does not count them, and means over nothing. ``seconds``, ``judge``, and the ``uncounted_`` tokens, of
    completions in no ballot and of their prompts, are of the last run only. ``unanswered`` questions have no sample
    with an answer. ``repeats`` says whether each question with three samples or more got the same text every time, as
    from a server that decodes greedily, or whether nearly all got one text a request, as from a server that gives one
    seed to all samples of it; None without such questions. ``right`` is a bound on right winners from labelled
    questions.
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
    truncated: int
    unanswered: int
    refused: int
    cancelled: int
    repeats: bool | None
    uncounted_completion_tokens: int
    judge: JudgeUsage | None
    seconds: float
    right: RightWinners | None = None
    uncounted_prompt_tokens: int = 0


def summarise(
    ballots: Sequence[Ballot],
    questions: int,
    max_samples: int,
    seconds: float,
    uncounted_tokens: int = 0,
    judge: JudgeUsage | None = None,
) -> Summary:
    """Return the totals of the finished ``ballots`` of a vote on this number of ``questions``.

    ``seconds``, ``uncounted_tokens``, of completions that are in no ballot, and ``judge`` are those of the last run.
    """
    totals: dict[str, Any] = {name: sum(getattr(ballot, name) for ballot in ballots) for name in COUNTED}
    full, full_completion = max_samples * len(ballots), _full_completions(ballots, max_samples)
    prompt, completion = None, None
    if ballots:
        prompt = total(ballot.prompt_tokens for ballot in ballots)
        completion = total(ballot.completion_tokens for ballot in ballots)
    risks = [ballot.disagreement for ballot in ballots]
    same = [ballot.texts == 1 for ballot in ballots if ballot.samples - ballot.failed >= 3]
    by_request = [ballot.repeats for ballot in ballots if ballot.repeats is not None]
    one_seed = bool(by_request) and sum(by_request) >= ONE_SEED * len(by_request)
    return Summary(
        **totals,
        questions=questions,
        finished=len(ballots),
        max_samples=max_samples,
        full_samples=full,
        samples_saved=_saved(totals["samples"], full),
        prompt_tokens=prompt,
        full_prompt_tokens=_full_prompts(ballots, max_samples),
        completion_tokens=completion,
        full_completion_tokens=full_completion,
        completion_tokens_saved=_saved(completion, full_completion),
        waves=_mean(ballot.waves for ballot in ballots),
        share=_mean(ballot.share for ballot in ballots if ballot.share is not None),
        disagreement=_mean(risks),
        worst_disagreement=max(risks, default=None),
        accuracy=_accuracy([ballot.correct for ballot in ballots if ballot.correct is not None]),
        unanswered=sum(ballot.stopped != "refused" and not ballot.votes for ballot in ballots),
        refused=sum(ballot.stopped == "refused" for ballot in ballots),
        repeats=one_seed or all(same) if same else None,
        uncounted_completion_tokens=uncounted_tokens,
        judge=judge,
        seconds=seconds,
    )


def summary_json(summary: Summary, prices: Prices | None = None) -> str:
    """Return one JSON object, with null for unknown values. With ``prices`` it also has cost and full_cost."""
    cost = {} if prices is None else dict(zip(("cost", "full_cost"), _costs(summary, prices), strict=True))
    return json_text(plain(summary) | cost)


def summary_text(summary: Summary, prices: Prices | None = None) -> str:
    """Return the summary as a table without unknown values."""
    return text_table(summary_rows(summary, prices), align="ll")


def summary_rows(summary: Summary, prices: Prices | None = None) -> list[tuple[str, str]]:
    """Return a name and a text for each known total."""
    return [(name, text) for name, text in _rows(summary, prices) if text]


def _rows(summary: Summary, prices: Prices | None) -> Iterable[tuple[str, str]]:
    """Yield a name and a text for each total, an empty one for what is unknown."""
    left = summary.questions - summary.finished
    yield "questions", f"{summary.finished}" + (f" of {summary.questions}; {left} not finished" if left else "")
    for name, used, full, about in (
        ("samples", summary.samples, summary.full_samples, ""),
        ("prompt tokens", summary.prompt_tokens, summary.full_prompt_tokens, "about "),
        ("completion tokens", summary.completion_tokens, summary.full_completion_tokens, "about "),
    ):
        saved = _saved(used, full)
        if saved is not None:
            share = f"{saved:.1%} saved" if saved >= 0 else f"{-saved:.1%} more"
            yield name, f"{used:,} of {about}{full:,} for the full vote: {share}"
    if prices is not None:
        paid, costs = _costs(summary, prices)
        yield "cost", "" if paid is None or costs is None else f"{paid:,.2f} of about {costs:,.2f} for the full vote"
    yield "waves a question", "" if summary.waves is None else f"{summary.waves:.2f}"
    yield "votes for the winner", "" if summary.share is None else f"{summary.share:.1%}"
    if summary.disagreement is not None:
        mean, worst = f"{summary.disagreement:.2%}", f"{summary.worst_disagreement:.2%}"
        yield "other than the full vote", f"expected in at most {mean} of the questions; {worst} for the least certain"
    if (right := summary.accuracy) is not None:
        interval = f"95% interval {right.low:.1%} to {right.high:.1%}"
        yield "accuracy", f"{right.mean:.1%} of {right.questions} with a gold answer ({interval})"
    if (shown := summary.right) is not None:
        least = f"at least {shown.at_least:.1%} of {shown.finished} with {shown.confidence:.0%} confidence"
        drawn = f"{shown.right} of {shown.labelled} labelled ones are right"
        yield "right winners", f"{least}: {drawn}. It holds if they were drawn at random"
    elif summary.accuracy is None and summary.finished:
        yield "right winners", "unknown, because agreement is not correctness; --labels gives a bound"
    yield (
        "samples lost",
        _counted((summary.failed, "failed"), (summary.unparsed, "without an answer"), (summary.cancelled, "cancelled")),
    )
    yield (
        "questions lost",
        _counted((summary.unanswered, "without an answer"), (summary.refused, "refused by the server")),
    )
    yield "samples cut off", f"{summary.truncated} at their maximum length" if summary.truncated else ""
    yield "warning", REPEATS if summary.repeats else ""
    if (judge := summary.judge) is not None:
        different = judge.unclear + judge.failed + judge.beyond_bound
        yield "judge", f"{judge.requests} requests, {judge.prompt_tokens + judge.completion_tokens:,} tokens"
        yield "judged different", f"{different} pairs without a clear reply, or beyond the bounds" if different else ""
    uncounted = summary.uncounted_completion_tokens
    yield "tokens not counted", f"{uncounted:,} of samples that are kept and in no vote" if uncounted else ""
    yield "seconds", f"{summary.seconds:.1f}"


def _counted(*counts: tuple[int, str]) -> str:
    return ", ".join(f"{count} {name}" for count, name in counts if count)


def _costs(summary: Summary, prices: Prices) -> tuple[float, float] | tuple[None, None]:
    """Return the cost of this vote, with its judge and lost samples, and of the full vote; None if unknown."""
    used, full = summary.prompt_tokens, summary.full_prompt_tokens
    if used is None or full is None or summary.completion_tokens is None or summary.full_completion_tokens is None:
        return None, None
    judge = JudgeUsage() if summary.judge is None else summary.judge
    prompts = used + judge.prompt_tokens + summary.uncounted_prompt_tokens
    completions = summary.completion_tokens + judge.completion_tokens + summary.uncounted_completion_tokens
    paid = prices.cost(prompts, completions)
    return paid, prices.cost(full, summary.full_completion_tokens)


def _full_prompts(ballots: Sequence[Ballot], max_samples: int) -> int | None:
    """Return the prompt tokens of the full vote, with as many samples a request as in this vote."""
    prompts = total(ballot.prompt_length for ballot in ballots) if ballots else None
    if prompts is None or any(ballot.shares_prompts for ballot in ballots):
        return prompts
    return max_samples * prompts


def _full_completions(ballots: Sequence[Ballot], max_samples: int) -> int | None:
    """Return the completion tokens of the full vote if its completions are as long as those that arrived."""
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
    return Accuracy(len(correct), sum(correct) / len(correct), *exact_interval(sum(correct), len(correct)))
