"""VIP's Figure 3: how well its Gaussian process foresees success along training, beside other predictors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim
from benchmarks.evidence.learning import SEEDS
from benchmarks.evidence.vip_prediction_measured import ORDERS, lab, recorded

CELLS: Mapping[str, Cell] = {
    "vip_prediction.lab_hard": Cell(partial(lab, "hard"), 1.0, SEEDS),
    "vip_prediction.lab_medium": Cell(partial(lab, "medium"), 1.0, SEEDS),
    "vip_prediction.recorded": Cell(recorded, 0.3, ORDERS),
}
CLAIMS: tuple[Claim, ...] = ()
