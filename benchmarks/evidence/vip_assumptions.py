"""VIP's assumptions about rewards and gradient norms (Assumption 4.1, Appendix B), and its variance formula."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim
from benchmarks.evidence.vip_assumptions_measured import again, formula, lab, model

CELLS: Mapping[str, Cell] = {
    "vip_assumptions.lab_hard": Cell(partial(lab, "hard"), 3.0),
    "vip_assumptions.lab_medium": Cell(partial(lab, "medium"), 3.0),
    "vip_assumptions.again": Cell(again, 1.0, tuple(range(20, 28))),
    "vip_assumptions.model": Cell(model, 0.2),
    "vip_assumptions.formula": Cell(formula, 0.2),
}
CLAIMS: tuple[Claim, ...] = ()
