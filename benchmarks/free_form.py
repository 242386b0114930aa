"""Measure which answers each equivalence counts together, on votes with known classes.

python -m benchmarks.free_form [--quick]
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import asyncio
from pathlib import Path

import numpy as np

from apportion.answers import EmbeddingMatch, ExactMatch, MathVerify, PhraseMatch
from benchmarks.common import RESULTS, options, write
from benchmarks.free_form_measured import SAMPLES, column, hand_written, measure
from benchmarks.stopping_measured import ratio

SEED = 0
THRESHOLDS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)
QUICK = Path("runs") / "free-form-quick"
COLUMNS = ("answers are equal by", "precision", "votes split off", "votes wrongly merged")


def row(method, found):
    """Return the line of a method."""
    return [method, precision(found), *(f"{column(found, name).mean():.2f}" for name in ("split", "wrong"))]


def precision(found):
    """Return the precision with its interval, which is left out if few questions have any merged pair."""
    if not column(found, "merged").any():
        return "none"
    with np.errstate(invalid="ignore"):
        share = ratio((column(found, "rightly"), column(found, "merged")))
    return share.show(".2f") if np.isfinite(share.low) else f"{share.value:.2f}"


def f1(found):
    """Return the harmonic mean of precision and recall over all pairs of wordings."""
    rightly, merged, together = (column(found, name).sum() for name in ("rightly", "merged", "together"))
    return float(2 * rightly / (merged + together))


def choose(found, questions):
    """Return the threshold with the largest F1 on these questions."""
    return max(found, key=lambda threshold: f1([found[threshold][q] for q in questions]))


def cross_fitted(found):
    """Return each question's result at the threshold chosen on the half without it, and the two thresholds."""
    halves = np.array_split(np.random.default_rng(SEED).permutation(len(next(iter(found.values())))), 2)
    chosen = [choose(found, half) for half in halves[::-1]]
    by_question = {q: found[threshold][q] for half, threshold in zip(halves, chosen, strict=True) for q in half}
    return [by_question[q] for q in sorted(by_question)], chosen


async def compared(questions):
    """Return the results of each equivalence, and those by embeddings for each threshold."""
    found = {}
    for name, equivalence in {"exact": ExactMatch(), "math": MathVerify(), "phrase": PhraseMatch()}.items():
        found[name] = await measure(questions, _always(equivalence))
        await equivalence.aclose()
    by_threshold = {one: await measure(questions, _always(EmbeddingMatch(one))) for one in THRESHOLDS}
    return found, by_threshold


def _always(equivalence):
    return lambda question: equivalence


def main():
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
        COLUMNS,
        [row(method, of) for method, of in found.items()],
        [
            f"{len(words)} short questions with known classes of answers, written by hand for this table, so they are "
            f"no sample of any task; each vote is a random wording of its class. {orders} orders of {SAMPLES} "
            "votes a question.",
            "Precision counts pairs of different wordings in a vote, with 95% intervals over questions. Votes split "
            "off: of the votes for the true winner, the share outside their largest counted class. Wrongly merged: "
            "votes in a class whose majority means something else. The thresholds of embedding are chosen by F1 on one "
            "half of the questions and reported on the other. No real model judged.",
        ],
        seeds=[SEED],
        results=QUICK if quick else RESULTS,
    )


if __name__ == "__main__":
    main()
