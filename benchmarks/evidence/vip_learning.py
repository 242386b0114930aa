"""What a policy learns under VIP: Tables 1, 3 and 9 of arXiv 2602.01601, and Appendix F."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim
from benchmarks.evidence.learning import SEEDS
from benchmarks.evidence.vip_learning_measured import SWEEP_SEED, arm

RATE = 1e-3
"""What the sweep of the Gaussian process chose, and that of every control. The other arms take it over."""
SETTINGS = ((8, "rloo"), (8, "dr_grpo"), (16, "rloo"), (16, "dr_grpo"))
SIBLINGS = (
    *((rule, 8, "rloo") for rule in ("exact", "shuffled", "ridge", "inverse_accuracy", "inverse_variance", "uniform")),
    *(("belief", *setting) for setting in SETTINGS),
)
CELLS: Mapping[str, Cell] = {
    **{f"vip_learning.gp_{n}_{e}": Cell(partial(arm, "gp", n, e), 2.0, (*SEEDS, SWEEP_SEED)) for n, e in SETTINGS},
    **{
        f"vip_learning.{rule}_{n}_{e}": Cell(partial(arm, rule, n, e, rate=RATE), 1.3, SEEDS) for rule, n, e in SIBLINGS
    },
}
CLAIMS: tuple[Claim, ...] = ()
