"""The claims of the paper on OptPO about its votes: the test, its error, its assumptions and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim
from benchmarks.evidence.optpo_votes_measured import SEEDS, four_choices, lab, promise, recorded, wald

SAMPLING: Mapping[str, tuple[float, float]] = {"plain": (1.0, 1.0), "cold": (0.6, 1.0), "paper": (0.6, 0.95)}
"""Temperature and top-p of the lab's votes, by a name. The paper's are "paper"."""
CELLS: Mapping[str, Cell] = {
    **{f"optpo_votes.{name}": Cell(partial(recorded, name), 0.2) for name in ("game24_cot", "game24_standard")},
    **{f"optpo_votes.lab_{name}": Cell(partial(lab, *how), 0.4, tuple(SEEDS)) for name, how in SAMPLING.items()},
    "optpo_votes.wald": Cell(wald, 0.2),
    "optpo_votes.promise": Cell(promise, 0.2),
    "optpo_votes.four_choices": Cell(four_choices, 0.2),
}
CLAIMS: tuple[Claim, ...] = ()
