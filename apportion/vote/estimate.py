"""Lower and upper bounds on the cost of a vote, before anything is asked. No server is contacted."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import mul

from apportion.answers.making import JUDGE
from apportion.messages import prompt_text
from apportion.questions import Question, fill_template
from apportion.runs.text_table import text_table
from apportion.types import Prompt
from apportion.vote.setup import Setup
from apportion.vote.summary import Prices

CHARACTERS_PER_TOKEN = 4
"""The ratio for English text in common tokenizers. Other scripts and formulas take more tokens."""


@dataclass(frozen=True)
class Estimate:
    """Of ``questions``, ``finished`` need nothing more. ``least_`` and ``most_`` bound the cost of the others.

    Prompt tokens are estimated at 4 characters each, with one prompt a sample. ``most_completion_tokens`` counts each
    completion at its longest; None if the server sets that. ``most_cost`` is None without prices, or without it. The
    tokens of a judge are in none of them.
    """

    questions: int
    finished: int
    least_samples: int
    most_samples: int
    least_prompt_tokens: int
    most_prompt_tokens: int
    most_completion_tokens: int | None
    most_cost: float | None
    judged: bool = False


def estimate(
    questions: Sequence[Question],
    setup: Setup,
    finished: Iterable[str] = (),
    prices: Prices | None = None,
    kept: Mapping[str, int] | None = None,
) -> Estimate:
    """Return the estimate for the ``questions`` whose ids are not ``finished``, if all of them have answers.

    ``kept`` is the number of samples by question that are there already.
    """
    done, kept = set(finished), kept or {}
    to_do = [question for question in questions if question.id not in done]
    voting = replace(setup.voting, wave="free")
    least = int(voting.plan(voting.start([Prompt("")])).counts[0])
    there = [kept.get(question.id, 0) for question in to_do]
    fewest = [max(0, least - have) for have in there]
    most = [max(0, setup.voting.max_samples - have) for have in there]
    system = len(setup.endpoint.system or "")
    lengths = [system + len(prompt_text(fill_template(setup.template, question))) for question in to_do]
    tokens = [-(-length // CHARACTERS_PER_TOKEN) for length in lengths]
    longest = setup.endpoint.max_tokens
    completion = None if longest is None else sum(most) * longest
    most_prompt = sum(map(mul, most, tokens))
    return Estimate(
        questions=len(questions),
        finished=len(questions) - len(to_do),
        least_samples=sum(fewest),
        most_samples=sum(most),
        least_prompt_tokens=sum(map(mul, fewest, tokens)),
        most_prompt_tokens=most_prompt,
        most_completion_tokens=completion,
        most_cost=None if prices is None or completion is None else prices.cost(most_prompt, completion),
        judged=setup.equivalence == JUDGE,
    )


def estimate_text(result: Estimate) -> str:
    """Return the estimate as a table."""
    tokens = f"{result.least_prompt_tokens:,} to {result.most_prompt_tokens:,}"
    rows = [
        ("questions", f"{result.questions}, {result.finished} of them finished"),
        ("samples", f"{result.least_samples:,} to {result.most_samples:,}"),
        ("prompt tokens", f"{tokens}, at {CHARACTERS_PER_TOKEN} characters each"),
    ]
    if result.most_completion_tokens is not None:
        longest = "if every completion is as long as it may be"
        rows.append(("completion tokens", f"at most {result.most_completion_tokens:,}, {longest}"))
    if result.most_cost is not None:
        rows.append(("cost", f"at most {result.most_cost:,.2f}{', and that of the judge' if result.judged else ''}"))
    return text_table(rows, align="ll")
