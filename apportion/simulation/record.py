"""A run record of simulated training data, whose truth is known: a control for whatever reads run records."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.records import RunRecord
from apportion.simulation.course import SimulatedStep, course
from apportion.simulation.population import Population, place_of
from apportion.simulation.rules import SimulatedRule, make_rule
from apportion.types import Floats, Group, Mask, Rollout


def simulated_record(
    population: Population,
    rule: str | SimulatedRule = "uniform",
    steps: int = 100,
    prompts_per_step: int = 64,
    rollouts_per_prompt: int = 8,
) -> RunRecord:
    """Return the record of a simulated run: the log that ``rule`` would have written, without any training.

    ``rule`` is a text as ``make_rule`` reads it, with ``rollouts_per_prompt``, or a rule. The rewards are the
    verifier's, so they differ from the truth if its error rates are above 0. Steps took no time, and have none.

    >>> record = simulated_record(Population(prompts=50), steps=3, prompts_per_step=10)
    >>> len(record.step), len(record.reward), record.binary
    (30, 240, True)
    """
    made = make_rule(rule, population, rollouts_per_prompt) if isinstance(rule, str) else rule
    found = [_columns(each) for each in course(population, made, steps, prompts_per_step)]
    columns: dict[str, Any] = {name: np.concatenate([each[name] for each in found]) for name in found[0]}
    ids = [prompt.id for prompt in population.members]
    return RunRecord(
        name=f"simulated {made.name}",
        source="simulation",
        ids=ids,
        texts=ids,
        first=np.r_[0, np.cumsum(columns.pop("sizes"))],
        **columns,
    )


def true_success(population: Population, record: RunRecord) -> Floats:
    """Return the true success probability of each group's prompt at its step, [N].

    ``record`` is one that ``simulated_record`` made from the same population.
    """
    steps = int(record.step.max(initial=-1)) + 1
    edges = np.searchsorted(record.step, np.arange(steps + 1))
    found = [p[record.prompt[edges[step] : edges[step + 1]]] for step, p in enumerate(islice(population.walk(), steps))]
    return np.concatenate([np.zeros(0), *found])


def _columns(found: SimulatedStep) -> dict[str, NDArray[Any]]:
    """Return the columns of one step, and the ``sizes`` of its groups."""
    batch = found.batch
    rollouts = [rollout for group in batch.rollouts for rollout in group]
    return {
        "step": np.full(len(batch.prompts), found.step),
        "prompt": np.array([place_of(prompt) for prompt in batch.prompts], np.int64),
        "asked": batch.asked,
        "predicted": batch.belief.mean,
        "sizes": np.array([len(group) for group in batch.rollouts], np.int64),
        "reward": np.array([float(bool(rollout.correct)) for rollout in rollouts]),
        "tokens": np.array([rollout.tokens for rollout in rollouts], np.float64),
        "score_norm": np.array([rollout.score_norm for rollout in rollouts], np.float64),
        "answer": np.array([int((rollout.answer or "a0")[1:]) for rollout in rollouts], np.int64),
        "kept": _kept(batch.rollouts, [prompt.id for prompt in batch.prompts], found.groups),
    }


def _kept(rollouts: Sequence[Sequence[Rollout]], ids: Sequence[str], groups: Sequence[Group]) -> Mask:
    """Return which of the rollouts that were drawn entered the loss. Groups come in the order of the prompts."""
    kept = [np.zeros(len(each), bool) for each in rollouts]
    place = -1
    for group in groups:
        place = ids.index(group.prompt.id, place + 1)
        fresh = np.array([rollout.step is None for rollout in group.rollouts], bool)
        size = min(len(fresh), len(kept[place]))
        kept[place][:size] = (group.keep & fresh)[:size]
    return np.concatenate([np.zeros(0, bool), *kept])
