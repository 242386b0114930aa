"""VIP with graded rewards: its Appendix E."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim
from benchmarks.evidence.learning import SEEDS, Settings
from benchmarks.evidence.vip_graded_measured import learning, variances

VIP = {"name": "vip", "estimator": "rloo", "rollouts_per_prompt": 8}
ARMS: Mapping[str, Settings] = {
    "uniform": {"name": "uniform", "rollouts_per_prompt": 8},
    "graded_gp": {**VIP, "predictor": "graded_gp"},
    "running": {**VIP, "predictor": "running_variance"},
    "shuffled": {**VIP, "predictor": {"name": "shuffled", "predictor": "running_variance"}},
}
CELLS: Mapping[str, Cell] = {
    "vip_graded.variance_hard": Cell(partial(variances, "hard"), 1.0, SEEDS),
    "vip_graded.variance_medium": Cell(partial(variances, "medium"), 1.0, SEEDS),
    "vip_graded.variance_later": Cell(partial(variances, "hard", 3200), 1.0, SEEDS),
    **{f"vip_graded.learn_{name}": Cell(partial(learning, rule), 1.0, SEEDS) for name, rule in ARMS.items()},
}
CLAIMS: tuple[Claim, ...] = ()
