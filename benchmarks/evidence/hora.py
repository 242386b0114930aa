"""HORA's claims about training: pass@k, hard-first rules, the share of pre-rollouts, priors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim
from benchmarks.evidence.hora_measured import FORKS_SEEDS, forks, forks_start, tuned, untuned
from benchmarks.evidence.learning import SEEDS, SWEEP_SEEDS

UNTUNED = ("uniform", "random", "hardest", "pre_1", "pre_2", "pre_6", "counts", "empirical_bayes", "gp")

CELLS: Mapping[str, Cell] = {
    **{
        f"hora.{estimator}": Cell(partial(tuned, "pre_4", estimator), 3.0, (*SEEDS, *SWEEP_SEEDS))
        for estimator in ("rloo", "grpo")
    },
    **{f"hora.{rule}": Cell(partial(untuned, rule), 1.3, SEEDS) for rule in UNTUNED},
    **{f"hora.forks_{rule}": Cell(partial(forks, rule), 1.5, FORKS_SEEDS) for rule in ("uniform", "pre_4")},
    "hora.forks_start": Cell(forks_start, 0.2),
}
CLAIMS: tuple[Claim, ...] = ()
