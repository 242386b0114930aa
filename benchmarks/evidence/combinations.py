"""What happens when decisions of several papers are combined, each beside the best of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim
from benchmarks.evidence.combinations_measured import arm
from benchmarks.evidence.learning import SEEDS

MINUTES = {
    "vip": 1.1,
    "weights": 1.1,
    "weights_vip": 1.1,
    "optimal": 1.3,
    "vip_optimal": 1.3,
    "weights_optimal": 1.3,
    "weights_vip_optimal": 1.3,
    "single_optimal": 2.6,
    "single_optimal_retire": 2.6,
    "single_batch": 2.6,
    "single_batch_mixed": 2.6,
    "reuse": 1.1,
    "vip_reuse": 1.1,
    "tokens_uniform": 1.1,
    "tokens_even": 1.1,
    "tokens_vip_rollouts": 1.1,
    "tokens_vip": 1.1,
    "tokens_hora": 1.2,
    "tokens_neyman": 1.3,
    "ar3po_by_rloo": 1.3,
    "ar3po_by_grpo": 1.3,
    "ar3po_by_sequential": 1.3,
    "hora_by_rloo": 1.2,
    "hora_by_sequential": 1.2,
    "reinforce_ada_by_rloo": 1.1,
    "reinforce_ada_by_sequential": 1.1,
}
"""The arms, and how many minutes each takes."""
CELLS: Mapping[str, Cell] = {
    f"combinations.{name}": Cell(partial(arm, name), minutes, SEEDS) for name, minutes in MINUTES.items()
}
CLAIMS: tuple[Claim, ...] = ()
