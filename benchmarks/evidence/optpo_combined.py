"""Other stopping rules inside OptPO, and what is trained on when votes stop early: combinations of our own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim
from benchmarks.evidence.learning import SEEDS
from benchmarks.evidence.optpo_combined_measured import bias
from benchmarks.evidence.optpo_learning_measured import trained

RETAINED = 8


def stopped_by(rule: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return OptPO with another stopping rule: the same M, N and update."""
    return {"name": "voting", "rule": rule, "min_samples": RETAINED, "max_samples": 64, "retain": "first"}


def ttrl(votes: int) -> Mapping[str, Any]:
    """Return TTRL with so many votes. It trains on as many rollouts as the others."""
    return {"name": "ttrl", "max_samples": votes, "min_samples": RETAINED}


OPTPO: Mapping[str, Any] = {"name": "optpo", "min_samples": RETAINED}
ARMS: Mapping[str, Mapping[str, Any]] = {
    "optpo": OPTPO,
    "calibrated_05": stopped_by({"name": "calibrated", "eps": 0.05}),
    "calibrated_01": stopped_by({"name": "calibrated", "eps": 0.01}),
    "ttrl_64": ttrl(64),
    "ttrl_24": ttrl(24),
    "ttrl_12": ttrl(12),
}
RETAINING: Mapping[str, partial[Any]] = {
    "all": partial(trained, {**OPTPO, "retain": "all"}, {"estimator": "rloo"}),
    "sequential": partial(trained, {**OPTPO, "retain": "all"}, {"estimator": "sequential"}),
    "first": partial(trained, OPTPO, {"estimator": "rloo"}),
}
CELLS: Mapping[str, Cell] = {
    "optpo_combined.bias": Cell(bias, 1.0),
    **{f"optpo_combined.learn_{name}": Cell(partial(trained, rule), 1.0, SEEDS) for name, rule in ARMS.items()},
    **{f"optpo_combined.retain_{name}": Cell(measure, 1.0, SEEDS) for name, measure in RETAINING.items()},
}
CLAIMS: tuple[Claim, ...] = ()
