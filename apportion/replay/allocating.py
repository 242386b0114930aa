"""Replay an allocator along a recorded run, batch by batch."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from apportion.allocators import Allocator
from apportion.loop import collect
from apportion.replay.cells import Cells
from apportion.replay.drawing import Drawing, own_rows, rollout_of
from apportion.replay.population import OutcomePopulation
from apportion.types import Batch, Counts, Group, Plan, Prompt

Observe = Literal["own", "recorded"]
"""What a rule learns from: the rollouts that it got itself, or the recorded groups."""


@dataclass(frozen=True, eq=False)
class ReplayedBatch:
    """A finished batch of a replay, its groups for the loss, and the index in the record of each prompt, [P]."""

    batch: Batch
    groups: Sequence[Group]
    places: Counts


def replay_batches(
    allocator: Allocator,
    population: OutcomePopulation,
    batches: Sequence[Counts],
    seed: int = 0,
    observe: Observe = "own",
) -> Iterator[ReplayedBatch]:
    """Yield what ``allocator`` makes of each of ``batches``. It learns from each one before the next."""
    record, generator = population.record, np.random.default_rng([seed, 1])
    allocator.prepare(record.prompts)
    for places in batches:
        known = places[population.size[places] > 0]
        if not len(known):
            continue
        draws = Drawing(population, known.tolist(), generator, recorded_first=observe == "recorded")
        batch = collect(allocator, _distinct(record.prompts, record.prompt[known]), draws, source=draws.source)
        yield ReplayedBatch(batch, allocator.groups(batch), np.array(draws.groups))
        allocator.observe(batch if observe == "own" else _recorded(allocator, population, batch, known))


def replay_allocator(
    allocator: Allocator,
    population: OutcomePopulation,
    batches: Sequence[Counts],
    seed: int = 0,
    observe: Observe = "own",
) -> Cells:
    """Return what ``allocator`` got in each of ``batches``.

    If it plans all rollouts at once, its measures are expectations given its counts. Otherwise outcomes of the batch
    decide, and the measures are what the drawn rollouts showed.
    """
    played = enumerate(replay_batches(allocator, population, batches, seed, observe))
    rows = [_columns(number, each) for number, each in played]
    batch, places, asked, first, got, mixed, hits, tokens = map(np.concatenate, zip(*rows, strict=True))
    labels = allocator.needs.labels
    drawn = {} if allocator.one_round and labels else {"mixed": mixed, "hits": hits, "tokens": tokens}
    return Cells.of(population, places, batch, asked, first, got, labels, drawn)


def _columns(number: int, each: ReplayedBatch) -> tuple[NDArray[Any], ...]:
    """Return the values that ``replay_allocator`` reads of a batch, one per prompt, [P]."""
    own = each.batch.sampled.rollouts
    mixed = {id(group.prompt): group.informative for group in each.groups}
    return (
        np.full(len(own), number),
        each.places,
        each.batch.asked,
        np.array([sum(rollout.round == 0 for rollout in group) for group in own], np.int64),
        np.array([len(group) for group in own], np.int64),
        np.array([mixed.get(id(prompt), False) for prompt in each.batch.prompts], np.float64),
        np.array([any(rollout.correct for rollout in group) for group in own], np.float64),
        np.array([sum(np.nan if r.tokens is None else r.tokens for r in group) for group in own], np.float64),
    )


def _recorded(allocator: Allocator, population: OutcomePopulation, batch: Batch, places: Counts) -> Batch:
    """Return the recorded batch, with the belief that ``batch`` has about the same prompts."""
    rollouts = [[rollout_of(population, row) for row in own_rows(population, place).tolist()] for place in places]
    empty = allocator.start(batch.prompts[: len(places)])
    return empty.add(Plan(np.array([len(own) for own in rollouts])), rollouts)


def _distinct(prompts: Sequence[Prompt], places: Counts) -> list[Prompt]:
    """Return the prompts at ``places``. A prompt that comes twice is two objects."""
    first = set(np.unique(places, return_index=True)[1].tolist())
    return [prompts[q] if at in first else replace(prompts[q]) for at, q in enumerate(places.tolist())]


@contextmanager
def quiet(allocator: Allocator) -> Iterator[list[str]]:
    """Collect the warnings that ``allocator`` logs in the block, in place of showing them."""
    seen: list[str] = []

    def keep(entry: logging.LogRecord) -> bool:
        seen.append(entry.getMessage())
        return False

    logger = logging.getLogger(type(allocator).__module__)
    logger.addFilter(keep)
    try:
        yield seen
    finally:
        logger.removeFilter(keep)
