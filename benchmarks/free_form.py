"""Measure which answers each equivalence counts together, on votes with known classes, and what that does to the stop.

python -m benchmarks.free_form [--quick]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from apportion.answers import EmbeddingMatch, Equivalence, ExactMatch, MathVerify, PhraseMatch
from benchmarks.common import RESULTS, options, table, write
from benchmarks.free_form_measured import (
    SAMPLES,
    Found,
    KnownClasses,
    Worded,
    column,
    erring_judge,
    hand_written,
    measure,
)
from benchmarks.stopping_measured import estimate, ratio

SEED = 0
THRESHOLDS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)
ERRORS = (0.0, 0.02, 0.05, 0.1)
QUICK = Path("runs") / "free-form-quick"
COLUMNS = (
    "answers are equal by", "precision", "recall", "votes split off", "votes wrongly merged", "samples",
    "known full vote %",
)  # fmt: skip

Results = Mapping[str, Sequence[Found]]


def row(method: str, found: Sequence[Found]) -> list[str]:
    """Return the line of a method."""
    return [
        method,
        _share(found, "rightly", "merged"),
        _share(found, "rightly", "together"),
        *(f"{column(found, name).mean():.2f}" for name in ("split", "wrong")),
        f"{column(found, 'samples').mean():.1f}",
        estimate(column(found, "loser")).show(scale=100),
    ]


def _share(found: Sequence[Found], over: str, under: str) -> str:
    """Return the ratio of two sums with its interval, which is left out if few questions have any such pair."""
    if not column(found, under).any():
        return "none"
    with np.errstate(invalid="ignore"):
        share = ratio((column(found, over), column(found, under)))
    return share.show(".2f") if np.isfinite(share.low) else f"{share.value:.2f}"


def f1(found: Sequence[Found]) -> float:
    """Return the harmonic mean of precision and recall over all pairs of wordings."""
    rightly, merged, together = (column(found, name).sum() for name in ("rightly", "merged", "together"))
    return float(2 * rightly / (merged + together))


def choose(found: Mapping[float, Sequence[Found]], questions: Sequence[int]) -> float:
    """Return the threshold with the largest F1 on these questions."""
    return max(found, key=lambda threshold: f1([found[threshold][q] for q in questions]))


def cross_fitted(found: Mapping[float, Sequence[Found]]) -> tuple[list[Found], list[float]]:
    """Return each question's result at the threshold chosen on the half without it, and the two thresholds."""
    halves = np.array_split(np.random.default_rng(SEED).permutation(len(next(iter(found.values())))), 2)
    chosen = [choose(found, half) for half in halves[::-1]]
    by_question = {q: found[threshold][q] for half, threshold in zip(halves, chosen, strict=True) for q in half}
    return [by_question[q] for q in sorted(by_question)], chosen


async def compared(questions: Sequence[Worded]) -> tuple[dict[str, list[Found]], dict[float, list[Found]]]:
    """Return the results of each equivalence, and those by embeddings for each threshold."""
    found = {"known classes": await measure(questions, KnownClasses)}
    for name, equivalence in {"exact": ExactMatch(), "math": MathVerify(), "phrase": PhraseMatch()}.items():
        found[name] = await measure(questions, _always(equivalence))
        await equivalence.aclose()
    by_threshold = {one: await measure(questions, _always(EmbeddingMatch(one))) for one in THRESHOLDS}
    return found, by_threshold


def _always(equivalence: Equivalence) -> Callable[[Worded], Equivalence]:
    return lambda question: equivalence


async def judged(questions: Sequence[Worded]) -> list[list[str]]:
    """Return the lines of judges that err in both directions."""
    rows = []
    for error in ERRORS:
        judge = erring_judge(questions, error, error, SEED)
        found = await measure(questions, _always(judge))
        rows.append([*row(f"a judge that errs, {error:.0%}", found), f"{judge.usage.requests / len(questions):.0f}"])
    return rows


def main() -> None:
    """Run the benchmark and write its tables."""
    quick = options(__doc__, quick=False).quick
    orders = 2 if quick else 10
    words = hand_written(orders, SEED)[: 12 if quick else None]
    found, by_threshold = asyncio.run(compared(words))
    fitted, chosen = cross_fitted(by_threshold)
    found[f"embedding ({' and '.join(f'{one:.2f}' for one in chosen)})"] = fitted
    write(
        "free_form",
        "Answers in several wordings: what is counted together, and what that does to the stop",
        [*COLUMNS, "requests a question"],
        [*([*row(method, of), "-"] for method, of in found.items()), *asyncio.run(judged(words))],
        [
            f"{len(words)} short questions with known classes of answers, written by hand for this table, so they are "
            f"no sample of any task; each vote is a random wording of its class. {orders} orders of {SAMPLES} "
            "votes a question.",
            "Precision counts pairs of different wordings in a vote, with 95% intervals over questions. Votes split "
            "off: of the votes for the true winner, the share outside their largest counted class. Wrongly merged: "
            "votes in a class whose majority means something else. The thresholds of embedding are chosen by F1 on one "
            "half of the questions and reported on the other. No real model judged.",
        ],
        more=[
            "Known full vote: how often the answer is not the winner of the full vote over the known classes. The rule "
            "is posterior_predictive at eps = .01. The right class is drawn with a probability from U(.3, .95). A "
            "judge errs with the given probability on each pair of wordings, in both directions. Requests are those "
            f"for all {orders} orders of a question, each pair once.",
            "## Every threshold of embedding",
            table(COLUMNS, [row(f"{one:.2f}", by_threshold[one]) for one in THRESHOLDS]),
        ],
        seeds=[SEED],
        results=QUICK if quick else RESULTS,
    )


if __name__ == "__main__":
    main()
