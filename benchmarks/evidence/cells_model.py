"""The cells of the language model, which train in TRL."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from benchmarks.evidence.cell import Cell
from benchmarks.evidence.language_model_measured import RULES, run
from benchmarks.evidence.language_model_norms import after, before
from benchmarks.evidence.language_model_runs import (
    AFTER,
    BEFORE,
    CONTROL,
    RATES,
    SEEDS,
    TUNED,
    TUNING_SEED,
    name_of,
    rate_of,
)  # fmt: skip

CELLS: Mapping[str, Cell] = {
    BEFORE: Cell(before, 0.5, (0,)),
    AFTER: Cell(after, 6.0, (TUNING_SEED,)),
    **{
        name_of(rule, rate, TUNING_SEED): Cell(partial(run, rule, rate, TUNING_SEED), 3.0, (TUNING_SEED,))
        for rule in TUNED
        for rate in RATES
    },
    **{
        name_of(rule, rate_of(rule), seed): Cell(
            partial(run, rule, rate_of(rule), seed, shadow=rule == CONTROL), 3.5, (seed,)
        )
        for seed in SEEDS
        for rule in RULES
    },
}
"""The control's runs have predictors in their shadow."""
