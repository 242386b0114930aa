"""Prompts that are planned together, and how they are saved."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from apportion.allocators.stored_rollouts import plain_rollout
from apportion.types import Batch, Belief, Plan, Prompt, Rollout

ROLLOUT = tuple(each.name for each in fields(Rollout))


@dataclass(slots=True)
class Unit:
    """Prompts that are planned together. ``results`` are those of the present round by (place, rollout).

    ``kept`` is the number of rows of a finished unit of an ``OfferedStream``.
    """

    number: int
    places: list[int]
    batch: Batch
    opened: int
    reserved: float
    decided: bool = False
    plan: Plan | None = None
    results: dict[tuple[int, int], Rollout | None] = field(default_factory=dict)
    missing: int = 0
    kept: int = 0


def saved_unit(unit: Unit) -> dict[str, Any]:
    """Return ``unit`` as plain values. Its completions are not copied."""
    batch = unit.batch
    return {
        "number": unit.number, "places": list(unit.places), "opened": unit.opened, "reserved": unit.reserved,
        "decided": unit.decided, "missing": unit.missing, "started": batch.started, "round": batch.round,
        "plan": None if unit.plan is None else unit.plan.counts.copy(), "asked": batch.asked.copy(),
        "belief": np.stack([batch.belief.alpha, batch.belief.beta, batch.belief.variance, batch.costs]),
        "rollouts": [[plain_rollout(rollout, ROLLOUT) for rollout in own] for own in batch.rollouts],
        "results": [(*at, one and plain_rollout(one, ROLLOUT)) for at, one in unit.results.items()],
    }  # fmt: skip


def restored_unit(values: Mapping[str, Any], prompts: Sequence[Prompt]) -> Unit:
    """Return what ``saved_unit`` was given."""
    alpha, beta, variance, costs = values["belief"]
    rollouts = tuple(tuple(Rollout(**found) for found in own) for own in values["rollouts"])
    own = tuple(prompts[place] for place in values["places"])
    batch = Batch(
        own, Belief(alpha, beta, variance), rollouts, values["asked"], costs, values["started"], values["round"]
    )
    results = {(q, i): None if found is None else Rollout(**found) for q, i, found in values["results"]}
    plan = None if values["plan"] is None else Plan(values["plan"])
    settled = (values["number"], list(values["places"]), batch, values["opened"], values["reserved"])
    return Unit(*settled, values["decided"], plan, results, values["missing"])
