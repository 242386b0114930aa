"""Every cell but those of the language model: what is measured, with what arguments, in how many minutes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from benchmarks.evidence import (
    ar3po_counts,
    ar3po_lab,
    ar3po_reuse,
    ar3po_store,
    combinations_measured,
    controls,
    hora_hits_measured,
    hora_measured,
    hora_theory_measured,
    optpo_combined_measured,
    optpo_votes_measured,
    vip_allocation_measured,
    vip_assumptions_measured,
    vip_learning_measured,
    vip_prediction_measured,
)
from benchmarks.evidence.cell import Cell
from benchmarks.evidence.learning import FIVE, SEEDS, SWEEP_SEEDS, learn_seeds
from benchmarks.evidence.optpo_learning_measured import TRAINING, greedy, trained

SWEPT = (*SEEDS, *SWEEP_SEEDS)
FOUR = SEEDS[:4]
"""The seeds of runs that are many."""
CONTROLS = {
    "controls.start": Cell(controls.start, 0.2),
    **{
        f"controls.uniform_{n}_{estimator}": Cell(partial(controls.uniform, n, estimator), 4.0, SWEPT)
        for n, estimator in ((4, "rloo"), (8, "rloo"), (16, "rloo"), (8, "dr_grpo"), (16, "dr_grpo"), (8, "grpo"))
    },
}

VIP_RATE = 1e-3
"""The best of three for the Gaussian process (benchmarks/results/methods.md) and for uniform in every setting."""
OTHERS = ((8, "dr_grpo"), (16, "rloo"), (16, "dr_grpo"))
AT_8_RLOO = ("ridge", "inverse_accuracy", "inverse_variance")
VIPS = {
    **{
        f"vip_learning.{rule}_{n}_{e}": Cell(partial(vip_learning_measured.arm, rule, n, e, VIP_RATE), 2.6, SEEDS)
        for rule, n, e in (
            *(("gp", *setting) for setting in ((8, "rloo"), *OTHERS)),
            *((rule, 8, "rloo") for rule in AT_8_RLOO),
        )
    },
    **{
        f"vip_learning.signals_{rule}_{n}": Cell(partial(vip_learning_measured.seen, rule, n), 2.6, SEEDS)
        for rule in ("gp", "uniform")
        for n in (8, 16)
    },
    "vip_prediction.lab_hard": Cell(partial(vip_prediction_measured.lab, "hard"), 1.0, FIVE),
    "vip_prediction.lab_medium": Cell(partial(vip_prediction_measured.lab, "medium"), 1.0, FIVE),
    "vip_prediction.recorded": Cell(vip_prediction_measured.recorded, 0.3, vip_prediction_measured.ORDERS),
    **{
        f"vip_assumptions.lab_{base}": Cell(partial(vip_assumptions_measured.lab, base), 3.0)
        for base in ("hard", "medium")
    },
    "vip_assumptions.again": Cell(vip_assumptions_measured.again, 1.0, tuple(range(20, 28))),
    "vip_assumptions.model": Cell(vip_assumptions_measured.model, 0.2),
    "vip_assumptions.formula": Cell(vip_assumptions_measured.formula, 0.2),
    "vip_allocation.rloo": Cell(partial(vip_allocation_measured.rounding, "rloo"), 0.5),
    "vip_allocation.dr_grpo": Cell(partial(vip_allocation_measured.rounding, "dr_grpo"), 1.5),
    "vip_allocation.relaxed": Cell(vip_allocation_measured.relaxed, 0.5),
    "vip_allocation.counts_by_p": Cell(vip_allocation_measured.counts_by_p, 0.1),
}

UNTUNED = ("uniform", "gp")
HORAS = {
    **{
        f"hora.{estimator}": Cell(partial(hora_measured.tuned, "pre_4", estimator), 3.0, SWEPT)
        for estimator in ("rloo", "grpo")
    },
    **{f"hora.{rule}": Cell(partial(hora_measured.untuned, rule), 2.6, SEEDS) for rule in UNTUNED},
    **{
        f"hora_hits.{base}": Cell(partial(hora_hits_measured.hits, base), 2.5, hora_hits_measured.SEEDS)
        for base in ("easy", "medium", "hard")
    },
    **{
        f"hora_hits.long_{rule}": Cell(partial(hora_hits_measured.long, rule), 0.9, SEEDS)
        for rule in hora_hits_measured.LONG_RULES
    },
    "hora_hits.theory": Cell(hora_theory_measured.theory, 0.2),
    "hora_hits.rare": Cell(hora_theory_measured.rare, 0.2),
}

AR3PO_RATES, DAPO_RATES = (1e-3, 2e-3), (1e-3, 2e-3, 4e-3)
"""The first sweep is narrow because 5e-4 was the best rate of no group rule in benchmarks/results/methods.md."""
AR3PO_RULES = {
    "reuse": {"name": "ar3po"},
    "option_1": {"name": "ar3po", "reuse": "recompute"},
    "staged": {"name": "ar3po", "reuse": "none"},
    "dapo": {"name": "dapo", "rollouts_per_prompt": 8},
    "uniform_5": {"name": "uniform", "rollouts_per_prompt": 5},
}
AR3POS = {
    "ar3po.recorded": Cell(ar3po_counts.recorded, 0.2),
    "ar3po.arithmetic": Cell(ar3po_counts.arithmetic, 0.1),
    "ar3po.stages": Cell(ar3po_counts.stages, 0.1),
    "ar3po.memory": Cell(ar3po_store.memory, 0.2),
    "ar3po.lookup": Cell(ar3po_store.lookup, 0.2),
    "ar3po.paired": Cell(partial(ar3po_reuse.paired, SEEDS), 3.0, SEEDS),
    **{
        f"ar3po.{name}": Cell(
            partial(ar3po_lab.learning, rule, DAPO_RATES if name == "dapo" else AR3PO_RATES),
            2.5,
            (*SEEDS, ar3po_lab.SWEEP_SEED),
        )
        for name, rule in AR3PO_RULES.items()
    },
    "ar3po.option_1_medium": Cell(partial(learn_seeds, AR3PO_RULES["option_1"], ar3po_reuse.MEDIUM), 1.3, SEEDS),
}


def ttrl(votes, retained):
    """Return TTRL with so many votes, of which it trains on the first ``retained``, or on all if they are fewer."""
    return {"name": "ttrl", "max_samples": votes, "min_samples": min(votes, retained)}


OPTPO: Mapping[str, Any] = {"name": "optpo", "min_samples": 32}
OPTPO_8: Mapping[str, Any] = {"name": "optpo", "min_samples": 8}
UPDATES: Mapping[str, Mapping[str, Any]] = {
    "ppo": {"estimator": "gae", "learning_rate": 6e-4},
    "reinforce_plus_plus": {"estimator": "reinforce_plus_plus", "learning_rate": 3.5e-4},
    "sft": {"estimator": "sft", "kl": 0.0, "learning_rate": 6e-4},
}
"""The updates beside GRPO, at the rates that benchmarks/results/label_free.md chose for TTRL."""
MATCHED: Mapping[str, Mapping[str, Any]] = {"ttrl_64": ttrl(64, 32), "optpo": OPTPO}
LEARN: Mapping[str, partial[Any]] = {
    **{f"ttrl_{votes}": partial(trained, ttrl(votes, 32)) for votes in (64, 32, 16)},
    "optpo": partial(trained, OPTPO),
    **{
        f"{name}_{update}": partial(trained, rule, changes, seeds=FIVE)
        for update, changes in UPDATES.items()
        for name, rule in MATCHED.items()
    },
}
COMBINED: Mapping[str, Mapping[str, Any]] = {
    "optpo": OPTPO_8,
    "calibrated_05": {
        "name": "voting",
        "rule": {"name": "calibrated", "eps": 0.05},
        "min_samples": 8,
        "max_samples": 64,
        "retain": "first",
    },
    "ttrl_64": ttrl(64, 8),
}
SAMPLING: Mapping[str, float] = {"plain": 1.0, "cold": 0.6}
"""Temperature of the lab's votes, by a name. The paper's is "cold"."""
OPTPOS = {
    **{
        f"optpo.learn_{name}": Cell(call, 0.3 * len(seeds), seeds)
        for name, call in LEARN.items()
        for seeds in (call.keywords.get("seeds", SEEDS),)
    },
    **{
        f"optpo.greedy_{name}": Cell(partial(learn_seeds, MATCHED[name], TRAINING, measure=greedy), 2.7, SEEDS)
        for name in ("optpo", "ttrl_64")
    },
    **{
        f"optpo_votes.{name}": Cell(partial(optpo_votes_measured.recorded, name), 0.2)
        for name in ("game24_cot", "game24_standard")
    },
    **{
        f"optpo_votes.lab_{name}": Cell(partial(optpo_votes_measured.lab, heat), 0.4, tuple(optpo_votes_measured.SEEDS))
        for name, heat in SAMPLING.items()
    },
    "optpo_theory.wald": Cell(optpo_votes_measured.wald, 0.2),
    "optpo_theory.promise": Cell(optpo_votes_measured.promise, 0.2),
    "optpo_theory.four_choices": Cell(optpo_votes_measured.four_choices, 0.2),
    "optpo_combined.bias": Cell(optpo_combined_measured.bias, 1.0),
    **{
        f"optpo_combined.learn_{name}": Cell(partial(trained, rule, seeds=FOUR), 1.0, FOUR)
        for name, rule in COMBINED.items()
    },
}

COMBINATIONS = {
    **{
        f"combinations.{name}": Cell(partial(combinations_measured.arm, name), 1.4, FIVE)
        for name in combinations_measured.ARMS
    },
    "combinations.ar3po_by_rloo_rollouts": Cell(
        partial(combinations_measured.arm, "ar3po_by_rloo", weighting="rollout"), 1.3, FIVE
    ),
}

CELLS: Mapping[str, Cell] = CONTROLS | VIPS | HORAS | AR3POS | OPTPOS | COMBINATIONS
