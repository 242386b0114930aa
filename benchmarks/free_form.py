"""Measure which answers each equivalence counts together, on votes with known classes.

python -m benchmarks.free_form [--quick]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import asyncio
import tomllib
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from apportion.answers import AnswerClasses, ExactMatch, MathVerify, PhraseMatch, for_question
from benchmarks.common import RESULTS, options, write
from benchmarks.stopping_measured import ratio

WORDINGS = Path(__file__).parent / "data" / "free_form.toml"
SAMPLES, SEED = 60, 0
QUICK = Path("runs") / "free-form-quick"


@dataclass(frozen=True)
class Worded:
    """A question, the class of each wording of its answers, and streams of votes in these wordings."""

    text: str
    classes: dict[str, int]
    streams: tuple[tuple[str, ...], ...]


def hand_written(orders, seed, path=WORDINGS):
    """Return the questions written by hand. The votes are drawn: the right class with probability U(.3, .95)."""
    questions = tomllib.loads(path.read_text(encoding="utf-8"))["question"]
    return [_drawn(question, orders, np.random.default_rng([seed, q])) for q, question in enumerate(questions)]


def _drawn(question, orders, rng):
    wordings: list[list[str]] = question["classes"]
    right = rng.uniform(0.3, 0.95)
    shares = [right, *(1 - right) * rng.dirichlet(np.ones(len(wordings) - 1))]
    chosen = rng.choice(len(wordings), size=(orders, SAMPLES), p=shares)
    streams = tuple(tuple(str(rng.choice(wordings[k])) for k in stream) for stream in chosen)
    return Worded(question["text"], {text: k for k, texts in enumerate(wordings) for text in texts}, streams)


async def measure(questions, equivalence):
    """Return pairs of different wordings in a stream [Q, 3], means over the streams of each question.

    The columns are pairs that were counted together, those of them that are of one class, and all of one class.
    """
    return np.array([await _pairs(question, for_question(equivalence, question.text)) for question in questions])


async def _pairs(question, equivalence):
    found = []
    for stream in question.streams:
        classes = AnswerClasses(equivalence, all_classes=True)
        label, true = {answer: await classes.join(answer) for answer in stream}, question.classes
        pairs = np.array([(label[a] == label[b], true[a] == true[b]) for a, b in combinations(label, 2)]).reshape(-1, 2)
        found.append([pairs[:, 0].sum(), pairs.all(axis=1).sum(), pairs[:, 1].sum()])
    return np.mean(found, axis=0)


def precision(found):
    """Return the precision with its interval, which is left out if few questions have any merged pair."""
    merged, rightly, _ = found.T
    if not merged.any():
        return "none"
    with np.errstate(invalid="ignore"):
        share = ratio((rightly, merged))
    return share.show(".2f") if np.isfinite(share.low) else f"{share.value:.2f}"


async def compared(questions):
    """Return the pairs by each equivalence."""
    found = {}
    for name, equivalence in {"exact": ExactMatch(), "math": MathVerify(), "phrase": PhraseMatch()}.items():
        found[name] = await measure(questions, equivalence)
        await equivalence.aclose()
    return found


def main():
    """Run the benchmark and write its table."""
    quick = options(__doc__, quick=False).quick
    orders = 2 if quick else 10
    words = hand_written(orders, SEED)[: 12 if quick else None]
    found = asyncio.run(compared(words))
    write(
        "free_form",
        "Answers in several wordings: what is counted together",
        ("answers are equal by", "precision"),
        [[method, precision(pairs)] for method, pairs in found.items()],
        [
            f"{len(words)} short questions with known classes of answers, written by hand for this table, so they are "
            f"no sample of any task; each vote is a random wording of its class. {orders} orders of {SAMPLES} "
            "votes a question.",
            "Precision counts pairs of different wordings in a vote, with 95% intervals over questions. No real model "
            "judged.",
        ],
        seeds=[SEED],
        results=QUICK if quick else RESULTS,
    )


if __name__ == "__main__":
    main()
