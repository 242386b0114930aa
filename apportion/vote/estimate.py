"""What a vote will take at the least and at the most, before anything is asked. No server is contacted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from apportion.questions import Question, filled
from apportion.types import Prompt
from apportion.vote.setup import Setup
from apportion.vote.summary import Prices, table_text

CHARACTERS_PER_TOKEN = 4
"""English text in common tokenizers; other scripts and formulas take more tokens."""


@dataclass(frozen=True)
class Estimate:
    """Of ``questions``, ``finished`` are answered already; the rest takes between ``least_`` and ``most_``.

    Prompt tokens are a guess of 4 characters each, one prompt a sample; completion tokens count every completion as
    long as it may be, None where that is left to the server. ``most_cost`` is None without prices, or without these.
    """

    questions: int
    finished: int
    least_samples: int
    most_samples: int
    least_prompt_tokens: int
    most_prompt_tokens: int
    most_completion_tokens: int | None
    most_cost: float | None


def estimate(
    questions: Sequence[Question], setup: Setup, finished: Iterable[str] = (), prices: Prices | None = None
) -> Estimate:
    """The estimate for those of ``questions`` whose id is not among the ``finished``."""
    done = set(finished)
    to_do = [question for question in questions if question.id not in done]
    surely = replace(setup.voting, wave="free")
    least = int(surely.plan(surely.start([Prompt("")])).counts[0])
    most = setup.voting.max_samples
    tokens = sum(-(-len(filled(setup.template, question)) // CHARACTERS_PER_TOKEN) for question in to_do)
    longest = setup.endpoint.max_tokens
    completion = None if longest is None else len(to_do) * most * longest
    return Estimate(
        questions=len(questions),
        finished=len(questions) - len(to_do),
        least_samples=least * len(to_do),
        most_samples=most * len(to_do),
        least_prompt_tokens=least * tokens,
        most_prompt_tokens=most * tokens,
        most_completion_tokens=completion,
        most_cost=None if prices is None or completion is None else prices.cost(most * tokens, completion),
    )


def estimate_json(result: Estimate) -> str:
    """One JSON object; ``most_cost`` is null without prices."""
    return json.dumps(asdict(result))


def estimate_text(result: Estimate, terminal: bool) -> str:
    """The estimate as a table, drawn on a ``terminal``."""
    prompt = (
        f"{result.least_prompt_tokens:,} to {result.most_prompt_tokens:,}, at {CHARACTERS_PER_TOKEN} characters each"
    )
    rows = [
        ("questions", f"{result.questions}, {result.finished} of them finished"),
        ("samples", f"{result.least_samples:,} to {result.most_samples:,}"),
        ("prompt tokens", prompt),
    ]
    if result.most_completion_tokens is not None:
        longest = "were every completion as long as it may be"
        rows.append(("completion tokens", f"at most {result.most_completion_tokens:,}, {longest}"))
    if result.most_cost is not None:
        rows.append(("cost", f"at most {result.most_cost:,.2f}"))
    return table_text(rows, terminal)
