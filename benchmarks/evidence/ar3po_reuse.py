"""AR3PO with and without reuse where reuse reaches more groups, as in benchmarks/ar3po.toml, paired by seed."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.evidence.ar3po_lab import followed
from benchmarks.evidence.claim import Values

MEDIUM = {
    "base": "medium",
    "problems": 128,
    "prompts_per_step": 16,
    "rollouts": 3840,
    "estimator": "grpo",
    "learning_rate": 5e-4,
    "evaluate_every": 384,
}
RULES = {"reuse": "stop_gradient", "replay": "replay", "staged": "none"}
KEPT = ("area", "end", "without", "after")


def paired(seeds: Sequence[int]) -> Values:
    """Return area, last success, and shares without a correct response before and after reuse, by rule and seed."""
    return {
        name: {
            key: [run[key] for run in runs]
            for runs in [[followed({"name": "ar3po", "reuse": reuse}, seed, MEDIUM) for seed in seeds]]
            for key in KEPT
        }
        for name, reuse in RULES.items()
    }
