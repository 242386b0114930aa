"""VIP's allocation: the relaxed problem, the rounding, the counts by p, and the share of a step that it takes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim
from benchmarks.evidence.vip_allocation_measured import counts_by_p, overhead, relaxed, rounding

CELLS: Mapping[str, Cell] = {
    "vip_allocation.rloo": Cell(partial(rounding, "rloo"), 0.5),
    "vip_allocation.dr_grpo": Cell(partial(rounding, "dr_grpo"), 1.5),
    "vip_allocation.relaxed": Cell(relaxed, 0.5),
    "vip_allocation.counts_by_p": Cell(counts_by_p, 0.1),
    "vip_allocation.overhead": Cell(overhead, 0.3),
}
CLAIMS: tuple[Claim, ...] = ()
