"""Replay of a rule on recorded answers: the number of samples that it takes, and the answer that it chooses."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from typing import Literal, overload

import numpy as np

from apportion.checks import LARGEST_INTEGER, check_integer
from apportion.stopping.base import Rule
from apportion.stopping.votes import Stream, count_votes, encode_answers
from apportion.types import ArrayValue, Counts
from apportion.untrusted import shown

Wave = int | Literal["free"]
"""Number of samples between two decisions. "free" takes ``Rule.earliest`` each time, which wastes no sample."""

MOST_SAMPLES = 10**6
"""The most samples of a prompt. Some rules keep tables of this length."""

BLOCK = 2**21
"""Largest number of vote counts held in memory at once."""


@dataclass(frozen=True)
class Decision:
    """A result on one stream: ``samples`` used in ``waves`` round trips; ``answer`` is None without votes."""

    samples: int
    answer: str | None
    waves: int


@dataclass(frozen=True, eq=False, repr=False)
class Decisions(ArrayValue, Sequence[Decision]):
    """The results of a rule on several streams, as columns [Q] and as a sequence of ``Decision``."""

    samples: Counts
    answer: tuple[str | None, ...]
    waves: Counts

    def __len__(self) -> int:
        return len(self.answer)

    @overload
    def __getitem__(self, index: int) -> Decision: ...
    @overload
    def __getitem__(self, index: slice) -> list[Decision]: ...
    def __getitem__(self, index: int | slice) -> Decision | list[Decision]:
        if isinstance(index, slice):
            return [self[q] for q in range(*index.indices(len(self)))]
        return Decision(int(self.samples[index]), self.answer[index], int(self.waves[index]))


def check_max_samples(max_samples: int) -> None:
    """Raise ValueError unless ``max_samples`` is an integer from 1 to ``MOST_SAMPLES``."""
    check_integer("max_samples", max_samples, 1, "64 is usual")
    if max_samples > MOST_SAMPLES:
        raise ValueError(f"max_samples must be at most {MOST_SAMPLES}, got {shown(max_samples)}; 64 is usual")


def check_wave(wave: Wave) -> None:
    """Raise ValueError unless ``wave`` is an integer of at least 1, or "free"."""
    free = isinstance(wave, str) and wave == "free"
    if not free and (not isinstance(wave, Integral) or isinstance(wave, bool) or not 1 <= wave <= LARGEST_INTEGER):
        raise ValueError(f'wave must be an integer of at least 1, or "free", got {shown(wave)}; 1 asks after each')


def are_streams(answers: Stream | Sequence[Stream]) -> bool:
    """Return whether ``answers`` are streams rather than one stream. Raise ValueError if they are mixed."""
    kinds = {isinstance(entry, (list, tuple, np.ndarray)) for entry in answers}
    if len(kinds) > 1:
        raise ValueError("answers must be strings, or lists of strings, got both; give one list per question")
    return kinds == {True}


def replay(streams: Sequence[Stream], rule: Rule, max_samples: int, wave: Wave) -> Decisions:
    """Return the decisions of ``rule`` on ``streams``; a stream shorter than ``max_samples`` is its own maximum."""
    encoded = (encode_answers(_check_answers(stream, q, max_samples)) for q, stream in enumerate(streams))
    labels, codes = zip(*encoded, strict=True)
    lengths, answers = np.array([len(code) for code in codes]), np.array([len(found) for found in labels])
    ends, chosen, waves = (np.zeros(len(streams), np.int64) for _ in range(3))
    for block in _blocks(lengths, answers):
        stacked, most = np.stack([codes[q] for q in block]), int(answers[block].max())
        ends[block], chosen[block], waves[block] = _replayed(stacked, most, rule, int(lengths[block[0]]), wave)
    answer = tuple(found[index] if index >= 0 else None for found, index in zip(labels, chosen, strict=True))
    return Decisions(ends, answer, waves)


def _check_answers(stream: Stream, q: int, max_samples: int) -> Stream:
    """Return the first ``max_samples`` answers of question ``q``. Raise ValueError unless they are strings or None."""
    if not len(stream):
        raise ValueError(f"a stream must have at least one sample, got none for question {q}; leave it out")
    taken: Stream = stream[:max_samples].tolist() if isinstance(stream, np.ndarray) else [*islice(stream, max_samples)]
    strange = [answer for answer in taken if not (answer is None or isinstance(answer, str))]
    if strange:
        raise ValueError(
            f"an answer must be a string, or None for a sample without one, got {strange[0]!r} for question {q}; "
            "write numbers as strings"
        )
    return taken


def _blocks(lengths: Counts, answers: Counts) -> Iterator[Counts]:
    """Yield the indices of questions of equal length, few answers first, in blocks that fit into memory."""
    order = np.lexsort((answers, lengths))
    for same in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1):
        rows = max(1, BLOCK // max(1, int(lengths[same[0]] * answers[same].max())))
        yield from (same[start : start + rows] for start in range(0, len(same), rows))


def _replayed(codes: Counts, answers: int, rule: Rule, length: int, wave: Wave) -> tuple[Counts, Counts, Counts]:
    """Return where each stream of ``codes`` [B, T] stops, the index of its answer and its number of waves, [B] each.

    ``ends`` holds the samples requested so far. Streams that have received the same number are decided together. The
    index is -1 without an answer.
    """
    votes, stops, seen = count_votes(codes, answers), np.zeros(codes.shape, bool), 0
    ends, waves = np.zeros((2, len(codes)), np.int64)
    for taken in range(length):
        if taken > seen:  # prefixes of growing length are read, because most streams stop early
            going, seen = ends >= taken, min(max(16, 2 * seen), length)
            stops[going, :seen] = rule.stops(votes[going, :seen], length)
        here = np.flatnonzero((ends == taken) & ~stops[:, taken - 1])
        if here.size:
            left = length - taken
            ends[here] += rule.earliest(votes[here, :taken], length) if wave == "free" else min(wave, left)
            waves[here] += 1
    rows = np.arange(len(votes)), ends - 1
    chosen = np.where(votes[rows].any(axis=-1), rule.winner(votes, length)[rows], -1)
    return ends, chosen, waves
