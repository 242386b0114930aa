"""Measure the time of a decision, and compare the package AdaptiveConsistency with our rules on the same answers."""

from __future__ import annotations

import contextlib
import io
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from apportion.stopping import CountRule, Rule, count_votes, decide, encode_answers, top_two
from apportion.stopping.adaptive_consistency import (
    AdaptiveConsistencyBeta,
    AdaptiveConsistencyDirichlet,
    beta_confidence,
    dirichlet_confidence,
)
from apportion.types import Counts, Floats
from benchmarks.recorded import Streams

CONFIDENCES = (0.9, 0.95, 0.99)
SEED = 0


@dataclass(frozen=True)
class Cost:
    """CPU seconds on one core: for replaying every stream, and for one question to a rule about a stream so far."""

    replay: float
    decisions: int
    stops_now: float
    earliest: float


def timing_streams(data: Mapping[str, Streams], questions: int, samples: int) -> list[list[str]]:
    """Return ``questions`` streams of ``samples`` answers each, drawn with replacement from recorded questions.

    The data sets have equal shares.
    """
    rng, found = np.random.default_rng(SEED), []
    for place in range(questions):
        recorded = list(data.values())[place % len(data)].questions
        answers = recorded[rng.integers(len(recorded))].answers
        found.append([answers[i] for i in rng.integers(len(answers), size=samples)])
    return found


def cost(rule: Rule, streams: Sequence[Sequence[str]], asked: int) -> Cost:
    """Time a replay of ``rule`` on ``streams`` of equal length, and ``asked`` single questions to it.

    The replay asks after every sample. A single question is about one random stream at a random length, as the client
    asks.
    """
    samples, rng = len(streams[0]), np.random.default_rng(SEED)
    start = time.process_time()
    found = decide(streams, rule, samples)
    replay = time.process_time() - start
    votes = []
    for place in rng.integers(len(streams), size=asked):
        answers, codes = encode_answers(streams[place][: rng.integers(1, samples)])
        votes.append(count_votes(codes, len(answers)))
    start = time.process_time()
    for so_far in votes:
        rule.stops_now(so_far, samples)
    middle = time.process_time()
    for so_far in votes:
        rule.earliest(so_far, samples)
    end = time.process_time()
    return Cost(replay, int(found.samples.sum()), (middle - start) / asked, (end - middle) / asked)


def installed() -> bool:
    """Return whether the package AdaptiveConsistency is installed."""
    return find_spec("adaptive_consistency") is not None


@dataclass(frozen=True)
class Beside:
    """The comparison of the package with our rule on the same prefixes, at each of ``CONFIDENCES``.

    - ``failed``: integrals for which the package printed an error. It does not stop after one.
    - ``differ``: decisions, of all ``decisions``, that are not ours.
    - ``gap``: the largest difference of the probabilities, if the package gives any.
    - ``theirs_seconds`` and ``ours_seconds``: for one prefix.
    """

    prefixes: int
    failed: int
    decisions: int
    differ: int
    gap: float | None
    theirs_seconds: float
    ours_seconds: float


def beta_beside(streams: Iterable[Sequence[str]]) -> Beside:
    """Compare the Beta rule on every prefix of ``streams``."""
    from adaptive_consistency import BetaStoppingCriteria  # noqa: PLC0415 - needed here only

    prefixes = [stream[: t + 1] for stream in streams for t in range(len(stream))]
    return _beside(
        BetaStoppingCriteria(), lambda votes: beta_confidence(*top_two(votes)), AdaptiveConsistencyBeta, prefixes
    )


def dirichlet_beside(prefixes: Sequence[Sequence[str]], monte_carlo: bool) -> Beside:
    """Compare the Dirichlet rule with the package's Monte Carlo or its nested quadrature."""
    from adaptive_consistency import DirichletStoppingCriteria  # noqa: PLC0415 - needed here only

    np.random.seed(SEED)  # the package draws from this generator
    criterion = DirichletStoppingCriteria(use_markov=monte_carlo)
    return _beside(criterion, lambda votes: dirichlet_confidence(votes, top=5), AdaptiveConsistencyDirichlet, prefixes)


def crowded_prefixes(streams: Iterable[Sequence[str]], most: int, count: int) -> list[Sequence[str]]:
    """Return ``count`` random prefixes with 3 to ``most`` distinct answers, no two of one stream."""
    rng, found = np.random.default_rng(SEED), []
    for stream in streams:
        prefix = stream[: rng.integers(3, len(stream) + 1)]
        if 3 <= len(set(prefix)) <= most:
            found.append(prefix)
    chosen = rng.permutation(len(found))[:count]
    return [found[place] for place in chosen]


def _beside(
    criterion: Any,
    probability: Callable[[Counts], Floats],
    rule: Callable[[float], CountRule],
    prefixes: Sequence[Sequence[str]],
) -> Beside:
    start = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its integrals, whose results are compared
        theirs = np.array([criterion.should_stop(list(prefix))["prob"] for prefix in prefixes])
    middle = time.process_time()
    votes = [np.bincount(encode_answers(prefix)[1]) for prefix in prefixes]
    ours = np.array([probability(mine) for mine in votes])
    end = time.process_time()
    differ = 0
    for confidence in CONFIDENCES:
        made = rule(confidence)
        stops = [
            made.enough(mine[None], mine.sum()[None], len(prefix)) for mine, prefix in zip(votes, prefixes, strict=True)
        ]
        differ += int((np.concatenate(stops) != (theirs >= confidence)).sum())
    given = theirs != -1  # what it returns after an error
    return Beside(
        len(prefixes),
        int((~given).sum()),
        len(CONFIDENCES) * len(prefixes),
        differ,
        float(np.abs(theirs - ours)[given].max()) if given.any() else None,
        (middle - start) / len(prefixes),
        (end - middle) / len(prefixes),
    )
