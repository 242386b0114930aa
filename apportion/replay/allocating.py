"""Replay an allocator along a recorded run, batch by batch."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from apportion.allocators import AR3PO, Allocator, PilotCommit
from apportion.loop import collect
from apportion.replay.cells import Cells
from apportion.replay.drawing import Drawing, own_rows, rollout_of
from apportion.replay.population import OutcomePopulation
from apportion.types import Batch, Counts, Floats, Group, Plan, Prompt

Observe = Literal["own", "recorded"]
"""What a rule learns from: the rollouts that it got itself, or the recorded groups."""


@dataclass(frozen=True, eq=False)
class ReplayedBatch:
    """A finished batch of a replay, its groups for the loss, and the place in the record behind each prompt, [P]."""

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
    single = _reads_more(allocator, population)
    allocator.prepare(record.prompts)
    for places in batches:
        known = places[population.size[places] > 0]
        if not len(known):
            continue
        draws = Drawing(population, known.tolist(), generator, single, recorded_first=observe == "recorded")
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
    rows = [
        _row(number, each) for number, each in enumerate(replay_batches(allocator, population, batches, seed, observe))
    ]
    batch, places, asked, first, got, mixed, hits, tokens = (
        np.concatenate(column) for column in zip(*rows, strict=True)
    )
    closed = allocator.one_round and allocator.needs.labels
    sizes = np.bincount(batch)
    level = (np.bincount(batch, got) / sizes)[batch]
    rule = measures(population, places, got) if closed else _seen(population, places, got, mixed, hits, tokens)
    even = measures(population, places, level)
    if not allocator.needs.labels:  # its groups are rewarded by votes
        unknown = np.full(len(got), np.nan)
        rule |= dict.fromkeys(("variance", "signal"), unknown)
        even |= dict.fromkeys(("mixed", "dead", "variance", "signal"), unknown)
    starts = np.r_[0, np.cumsum(sizes)[:-1]]
    return Cells(
        seed=np.zeros(len(batch), np.int64),
        batch=batch,
        prompt=population.record.prompt[places],
        group=places,
        asked=asked,
        first=first,
        rule=rule,
        even=even,
        step=population.record.step[places[starts]],
        prompts=len(population.record.ids),
    )


def measures(population: OutcomePopulation, places: Counts, number: Floats | Counts) -> dict[str, Floats]:
    """Return the expected measures of ``number`` [M] rollouts of the groups at ``places`` [M]."""
    mixed = population.mixed(places, number)
    hits = np.full(len(places), np.nan)
    if population.verified:
        hits = 1 - population.none_right(places, number)
    return {
        "rollouts": np.asarray(number, np.float64),
        "tokens": number * population.tokens[places],
        "mixed": mixed,
        "hits": hits,
        "dead": number * (1 - mixed),
        "variance": population.gradient_variance(places, number),
        "signal": population.signal(places, number),
    }


def _seen(
    population: OutcomePopulation, places: Counts, got: Counts, mixed: Floats, hits: Floats, tokens: Floats
) -> dict[str, Floats]:
    """Return the measures of rollouts that were drawn."""
    return {
        "rollouts": got.astype(np.float64),
        "tokens": np.where(got == 0, 0.0, tokens) if np.isfinite(tokens).any() else np.full(len(got), np.nan),
        "mixed": mixed,
        "hits": hits if population.verified else np.full(len(got), np.nan),
        "dead": got * (1 - mixed),
        "variance": population.gradient_variance(places, got) if got.all() else np.full(len(got), np.nan),
        "signal": population.signal(places, got),
    }


def _row(number: int, each: ReplayedBatch) -> tuple[Any, ...]:
    """Return the columns of one batch."""
    batch, own = each.batch, each.batch.sampled.rollouts
    place = {id(prompt): q for q, prompt in enumerate(batch.prompts)}
    mixed = np.zeros(len(own))
    for group in each.groups:
        mixed[place[id(group.prompt)]] = len({rollout.reward for rollout in group.rollouts}) > 1
    return (
        np.full(len(own), number),
        each.places,
        batch.asked,
        np.array([sum(rollout.round == 0 for rollout in group) for group in own]),
        np.array([len(group) for group in own]),
        mixed,
        np.array([any(rollout.correct for rollout in group) for group in own], np.float64),
        np.array([sum(np.nan if r.tokens is None else r.tokens for r in group) for group in own], np.float64),
    )


def _recorded(allocator: Allocator, population: OutcomePopulation, batch: Batch, places: Counts) -> Batch:
    """Return the batch that was recorded, with the belief of ``batch`` about its first prompts."""
    rollouts = [[rollout_of(population, row) for row in own_rows(population, place).tolist()] for place in places]
    empty = allocator.start(batch.prompts[: len(places)])
    return empty.add(Plan(np.array([len(own) for own in rollouts])), rollouts)


def _reads_more(allocator: Allocator, population: OutcomePopulation) -> bool:
    """Return whether something beside the verdict of a rollout matters."""
    record = population.record
    reused = isinstance(allocator, (AR3PO, PilotCommit))
    plain = np.isnan(record.tokens).all() and np.isnan(record.score_norm).all() and (record.answer < 0).all()
    return reused or not (record.binary and plain)


def _distinct(prompts: Sequence[Prompt], places: Counts) -> list[Prompt]:
    """Return the prompts at ``places``, an object for each, also for a prompt that comes twice."""
    found: dict[int, Prompt] = {}
    listed = []
    for q in places.tolist():
        listed.append(replace(prompts[q]) if q in found else prompts[q])
        found[q] = prompts[q]
    return listed


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
