"""Replays a rule on recorded answers: how many samples it would have taken, and which answer it would have chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, cast, overload

import numpy as np

from apportion.stopping.base import Rule
from apportion.stopping.curtailment import Curtailed
from apportion.stopping.registry import make_rule
from apportion.stopping.votes import Stream, coded, counted
from apportion.types import Counts

Wave = int | Literal["free"]
"""After how many samples a rule is asked; "free": after as many as it takes at the least, so that none is wasted."""

BLOCK = 2**21
"""Vote counts held at once."""


@dataclass(frozen=True)
class Decision:
    """Where a rule stopped on one stream: ``samples`` used, in ``waves`` round trips; ``answer`` None if none is."""

    samples: int
    answer: str | None
    waves: int


@dataclass(frozen=True)
class Decisions(Sequence[Decision]):
    """Where a rule stopped on each stream: as columns, and as a sequence of ``Decision``."""

    samples: Counts
    answer: tuple[str | None, ...]
    waves: Counts

    def __len__(self) -> int:
        return len(self.answer)

    @overload
    def __getitem__(self, place: int) -> Decision: ...
    @overload
    def __getitem__(self, place: slice) -> list[Decision]: ...
    def __getitem__(self, place: int | slice) -> Decision | list[Decision]:
        if isinstance(place, slice):
            return [self[q] for q in range(*place.indices(len(self)))]
        return Decision(int(self.samples[place]), self.answer[place], int(self.waves[place]))

    def __iter__(self) -> Iterator[Decision]:
        return (self[q] for q in range(len(self)))


@overload
def decide(
    answers: Stream,
    rule: str | Rule = ...,
    max_samples: int = ...,
    *,
    wave: Wave = ...,
    curtail: bool = ...,
    **settings: Any,
) -> Decision:
    """Of one stream, its decision."""


@overload
def decide(
    answers: Sequence[Stream],
    rule: str | Rule = ...,
    max_samples: int = ...,
    *,
    wave: Wave = ...,
    curtail: bool = ...,
    **settings: Any,
) -> Decisions:
    """Of many streams, their decisions."""


def decide(
    answers: Stream | Sequence[Stream],
    rule: str | Rule = "optpo",
    max_samples: int = 64,
    *,
    wave: Wave = 1,
    curtail: bool = False,
    **settings: Any,
) -> Decision | Decisions:
    """Replays ``rule`` on one stream of answers, or on each of a list of streams.

    An answer is a string; None is a sample without one: it is paid for and does not vote. A stream shorter than
    ``max_samples`` is its own maximum, and what lies beyond the maximum is never looked at. With ``wave`` the rule is
    asked after so many samples at a time. ``curtail`` adds lossless curtailment. ``settings`` are the rule's own, by
    name: ``decide(answers, "posterior_predictive", eps=0.05)``.

    Raises ValueError for an unknown rule or setting, for answers that are neither strings nor None, and for a stream
    without samples.

    >>> decide(["7", "7", "9", "7", "7", "7", "7", "7"], rule="adaptive_consistency_beta", max_samples=8)
    Decision(samples=7, answer='7', waves=7)
    >>> decide([["a"] * 8, ["a", "b"] * 4], rule="esc", max_samples=8, window=4).samples.tolist()
    [4, 8]
    """
    made = make_rule(rule, **settings)
    if curtail:
        made = Curtailed(made)
    check_max_samples(max_samples)
    check_wave(wave)
    made.check(max_samples)
    if isinstance(answers, (str, bytes, Set, Mapping)) or not isinstance(answers, Sized):
        raise ValueError(f"answers must be a list of strings, or of such lists, got {answers!r:.80}; list them")
    if not len(answers):
        raise ValueError("answers must hold at least one sample, got none; give a list of answers, or of such lists")
    if _many(answers):
        return _replay(cast(Sequence[Stream], answers), made, max_samples, wave)
    return _replay([cast(Stream, answers)], made, max_samples, wave)[0]


def check_max_samples(max_samples: int) -> None:
    """Raises ValueError unless ``max_samples`` is a number of samples."""
    if not _positive(max_samples):
        raise ValueError(f"max_samples must be an integer of at least 1, got {max_samples!r}; 64 is usual")


def check_wave(wave: Wave) -> None:
    """Raises ValueError unless ``wave`` is a number of samples, or "free"."""
    if not (_positive(wave) or (isinstance(wave, str) and wave == "free")):
        raise ValueError(f'wave must be an integer of at least 1, or "free", got {wave!r}; 1 asks after every sample')


def _positive(number: Any) -> bool:
    return isinstance(number, (int, np.integer)) and not isinstance(number, bool) and bool(number >= 1)


def _many(answers: Stream | Sequence[Stream]) -> bool:
    """Whether these are streams; refused where some are and some are not."""
    kinds = {isinstance(entry, (list, tuple, np.ndarray)) for entry in answers}
    if len(kinds) > 1:
        raise ValueError("answers must be strings, or lists of strings, got both; give one list a question")
    return kinds == {True}


def _replay(streams: Sequence[Stream], rule: Rule, max_samples: int, wave: Wave) -> Decisions:
    labels: list[list[str]] = []
    codes: list[Counts] = []
    for q, stream in enumerate(streams):
        found, code = coded(_taken(stream, q, max_samples))
        labels.append(found)
        codes.append(code)
    lengths, answers = np.array([len(code) for code in codes]), np.array([len(found) for found in labels])
    ends, places, waves = (np.zeros(len(streams), np.int64) for _ in range(3))
    for block in _blocks(lengths, answers):
        stacked, length = np.stack([codes[q] for q in block]), int(lengths[block[0]])
        ends[block], places[block], waves[block] = _decide_block(stacked, int(answers[block].max()), rule, length, wave)
    chosen = tuple(found[place] if place >= 0 else None for found, place in zip(labels, places, strict=True))
    return Decisions(ends, chosen, waves)


def _taken(stream: Stream, q: int, max_samples: int) -> Stream:
    """The first ``max_samples`` of question ``q``, as Python's own strings; refused where they are no answers."""
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
    """Questions of equal length, those with few answers first, in blocks that fit into memory."""
    order = np.lexsort((answers, lengths))
    for same in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1):
        rows = max(1, BLOCK // max(1, int(lengths[same[0]] * answers[same].max())))
        yield from (same[start : start + rows] for start in range(0, len(same), rows))


def _decide_block(codes: Counts, answers: int, rule: Rule, length: int, wave: Wave) -> tuple[Counts, Counts, Counts]:
    """Samples, chosen places (-1 where no sample held an answer) and waves, [B] each, of ``codes`` [B, T]."""
    if wave == "free":
        return _free_waves(codes, answers, rule, length)
    ends, places = _first_stops(codes, answers, rule, length, wave)
    return ends, places, -(-ends // wave)


def _first_stops(codes: Counts, answers: int, rule: Rule, length: int, wave: int) -> tuple[Counts, Counts]:
    """Where each stream stops, and for what, [B] each.

    Rules look back only, so a stream that stops early is not looked at to its end.
    """
    ends, places = np.zeros((2, len(codes)), np.int64)
    going, seen = np.arange(len(codes)), min(16, length)
    while going.size:
        votes = counted(codes[going, :seen], answers)
        taken = np.arange(1, seen + 1)
        stopped = (rule.stops(votes, length) & (taken % wave == 0)) | (taken == length)
        found = stopped.any(axis=-1)
        last = stopped[found].argmax(axis=-1)
        ends[going[found]] = last + 1
        places[going[found]] = _chosen(rule, votes[found], length, last)
        going, seen = going[~found], min(2 * seen, length)
    return ends, places


def _free_waves(codes: Counts, answers: int, rule: Rule, length: int) -> tuple[Counts, Counts, Counts]:
    """Where each stream stops, for what and after how many waves, [B] each, if no wave risks a sample too many.

    ``ends`` is how far each stream has been asked for; those that are asked at the same point are decided together.
    """
    ends, waves = np.zeros((2, len(codes)), np.int64)
    votes = counted(codes, answers)
    for taken in range(length):
        here = np.flatnonzero(ends == taken)
        if taken and here.size:
            here = here[~rule.stops_now(votes[here, :taken], length)]
        if here.size:
            ends[here] += rule.earliest(votes[here, :taken], length)
            waves[here] += 1
    return ends, _chosen(rule, votes, length, ends - 1), waves


def _chosen(rule: Rule, votes: Counts, length: int, last: Counts) -> Counts:
    """The place, [B], that ``rule`` chooses after sample number ``last`` [B], from 0, of ``votes`` [B, T, K]."""
    rows = np.arange(len(votes)), last
    return np.where(votes[rows].any(axis=-1), rule.winner(votes, length)[rows], -1)
