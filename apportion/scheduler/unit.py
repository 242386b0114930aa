"""Units: prompts that are planned together, and their saved form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from apportion.allocators.stored_rollouts import plain_rollout
from apportion.types import Batch, Belief, Plan, Prompt, Rollout

ROLLOUT = tuple(each.name for each in fields(Rollout))


@dataclass(slots=True)
class Unit:
    """Prompts that are planned together. ``results`` has the present round's results by (place, rollout)."""

    number: int
    places: list[int]
    batch: Batch
    opened: int
    reserved: float
    plan: Plan = field(default_factory=lambda: Plan(np.zeros(0, np.int64)))
    results: dict[tuple[int, int], Rollout | None] = field(default_factory=dict)
    missing: int = 0


def saved_unit(unit: Unit) -> dict[str, Any]:
    """Return ``unit`` as values that JSON takes, if its completions are such values. Completions are not copied."""
    batch = unit.batch
    belief = (batch.belief.alpha, batch.belief.beta, batch.belief.variance, batch.costs)
    return {
        "number": unit.number, "places": list(unit.places), "opened": unit.opened, "reserved": unit.reserved,
        "missing": unit.missing, "started": batch.started, "round": batch.round,
        "plan": unit.plan.counts.tolist(), "asked": batch.asked.tolist(),
        "belief": [row.tolist() for row in belief],
        "rollouts": [[_saved(rollout) for rollout in own] for own in batch.rollouts],
        "results": [[*at, one and _saved(one)] for at, one in unit.results.items()],
    }  # fmt: skip


def restored_unit(values: Mapping[str, Any], prompts: Sequence[Prompt]) -> Unit:
    """Return the unit that ``saved_unit`` was given."""
    alpha, beta, variance, costs = values["belief"]
    rollouts = tuple(tuple(_restored(found) for found in own) for own in values["rollouts"])
    own = tuple(prompts[place] for place in values["places"])
    batch = Batch(
        own, Belief(alpha, beta, variance), rollouts, values["asked"], costs, values["started"], values["round"]
    )
    results = {(q, i): None if found is None else _restored(found) for q, i, found in values["results"]}
    settled = (values["number"], list(values["places"]), batch, values["opened"], values["reserved"])
    return Unit(*settled, Plan(values["plan"]), results, values["missing"])


def _saved(rollout: Rollout) -> dict[str, Any]:
    return plain_rollout(rollout, ROLLOUT) | {"components": list(rollout.components)}


def _restored(values: Mapping[str, Any]) -> Rollout:
    return Rollout(**{**values, "components": tuple(values["components"])})
