"""Measure the time of a decision."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from apportion.stopping import Rule, count_votes, decide, encode_answers
from benchmarks.recorded import Streams

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
