"""Votes in several wordings whose classes are known, and what a way to compare answers makes of them."""

from __future__ import annotations

import tomllib
from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from apportion.answers import AnswerClasses, for_question
from apportion.stopping import decide

WORDINGS = Path(__file__).parent / "data" / "free_form.toml"
SAMPLES = 60


@dataclass(frozen=True)
class Worded:
    """A question, the class of each wording of its answers, and streams of votes in these wordings."""

    text: str
    classes: dict[str, int]
    streams: tuple[tuple[str, ...], ...]

    def true(self, stream):
        """Return the known class of each vote."""
        return [str(self.classes[answer]) for answer in stream]


@dataclass(frozen=True)
class Found:
    """What a way to compare answers gives on one question: sums or means over its streams.

    Attributes:
        merged: pairs of different wordings in a stream that were counted together; ``rightly`` those of one class.
        together: pairs of different wordings of one class.
        split: share of the votes for the full vote's true winner that were not counted with most of them.
        wrong: share of votes that were counted with a majority of another class.
    """

    merged: float
    rightly: float
    together: float
    split: float
    wrong: float


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


class KnownClasses:
    """The equivalence that knows the classes of one question."""

    def __init__(self, question):
        self._classes = question.classes

    async def find_equal(self, answer, known):
        """Return the index of the first of ``known`` in the same class."""
        return next((k for k, other in enumerate(known) if self._classes[other] == self._classes[answer]), None)

    async def aclose(self):
        """Do nothing, because there is nothing to free."""


async def measure(questions, make):
    """Return what the equivalence that ``make`` gives for a question finds on each question."""
    return [await _measured(question, for_question(make(question), question.text)) for question in questions]


async def _measured(question, equivalence):
    counted = []
    for stream in question.streams:
        classes = AnswerClasses(equivalence, all_classes=True)
        counted.append([await classes.join(answer) for answer in stream])
    true = [question.true(stream) for stream in question.streams]
    full = decide(true, "fixed", SAMPLES).answer
    pairs = np.sum([_pairs(question, *one) for one in zip(question.streams, counted, strict=True)], axis=0)
    split, wrong = np.mean([_lost(*one) for one in zip(counted, true, full, strict=True)], axis=0)
    return Found(*(pairs / len(question.streams)), split=float(split), wrong=float(wrong))


def _pairs(question, stream, counted):
    """Return the pairs of different wordings that were merged, those rightly, and those of one class."""
    label = dict(zip(stream, counted, strict=True))
    pairs = [(label[a] == label[b], question.classes[a] == question.classes[b]) for a, b in combinations(label, 2)]
    return sum(m for m, _ in pairs), sum(m and t for m, t in pairs), sum(t for _, t in pairs)


def _lost(counted, true, winner):
    """Return the share of the winner's votes outside their largest counted class, and of votes in a wrong class."""
    winners = Counter(c for c, t in zip(counted, true, strict=True) if t == winner)
    by_counted: dict[str, Counter[str]] = {}
    for c, t in zip(counted, true, strict=True):
        by_counted.setdefault(c, Counter())[t] += 1
    wrong = sum(found.total() - max(found.values()) for found in by_counted.values())
    return 1 - max(winners.values()) / winners.total(), wrong / len(counted)


def column(found, name):
    """Return one attribute [Q] of the questions."""
    return np.array([getattr(one, name) for one in found], float)
