"""HORA's claims about single batches: expected hits, hard-first rules, pre-rollouts, priors, theory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim
from benchmarks.evidence.hora_hits_measured import SEEDS, hits
from benchmarks.evidence.hora_theory_measured import rare, theory

BASES = ("easy", "medium", "hard")

CELLS: Mapping[str, Cell] = {
    **{f"hora_hits.{base}": Cell(partial(hits, base), 2.5, SEEDS) for base in BASES},
    "hora_hits.theory": Cell(theory, 0.2),
    "hora_hits.rare": Cell(rare, 0.2),
}
CLAIMS: tuple[Claim, ...] = ()
