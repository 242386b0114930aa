"""Measures combinations of decisions in the lab: which prompts, how many rollouts, what baseline, reuse, tokens.

Learning rates are those that the sweep of benchmarks/methods.py chose: 2e-3 for Reinforce-Ada, 1e-3 for the others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from apportion.allocators import AR3PO, HORA, VIP, Allocator, Even, Neyman, ReinforceAda, Uniform
from apportion.baselines import Optimal
from apportion.lab.report.results import Run
from apportion.lab.training.settings import Training
from apportion.lab.training.trainer import Trainer
from apportion.predictors import EmpiricalBayes, MeanLengths
from apportion.selection import Mixed, Retire, SPOWeights
from apportion.types import Batch, Group
from benchmarks.evidence.cell import Values
from benchmarks.evidence.learning import HARD, SEEDS

TOKENS = 96_000
"""The length of a run under a token budget: about what 12,800 rollouts take."""
TOKENS_PER_PROMPT = 61
"""What 8 rollouts of a problem take on average, between 3 and 11 tokens each."""
MOST = 24
"""The most rollouts of a prompt under every rule that moves rollouts between prompts."""


class ReusingVIP(VIP):
    """VIP's counts with AR3PO's reuse: a group without a correct response takes one of an earlier step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "_reuse", AR3PO(stages=1))

    def groups(self, batch: Batch) -> list[Group]:
        return self._reuse.groups(batch)

    def metrics(self, batch: Batch) -> dict[str, float]:
        return self._reuse.metrics(batch)

    def observe(self, batch: Batch) -> None:
        super().observe(batch)
        self._reuse.observe(batch)


def _vip(**settings: Any) -> VIP:
    return VIP(rollouts_per_prompt=8, high=MOST, **settings)


def _counts() -> Neyman:
    """Return VIP's belief with the variance of a baseline that is fixed beforehand: S / n, from one rollout on."""
    predictor = EmpiricalBayes()
    return Neyman(estimator="reinforce", rollouts_per_prompt=8, low=1, high=MOST, predictor=predictor)


def _of_tokens() -> dict[str, Any]:
    return {"tokens_per_prompt": TOKENS_PER_PROMPT, "lengths": MeanLengths(initial=8), "high": MOST}


OPTIMAL = {"estimator": "reinforce"}
SINGLES = {"prompts_per_step": 32}
LONG = {"rollouts": None, "tokens": TOKENS}


def _arm(name: str) -> tuple[Allocator, Mapping[str, Any]]:
    """Return the rule of an arm and the settings that it changes. Each call makes new objects."""
    match name:
        # Which prompts (weights of SPO) x how many (VIP's belief) x what baseline (optimal), at 8 rollouts a prompt.
        case "vip":
            return _vip(), {}
        case "weights":
            return Uniform(8), {"selection": SPOWeights()}
        case "weights_vip":
            return _vip(), {"selection": SPOWeights()}
        case "optimal":
            return Uniform(8), OPTIMAL | {"baseline": Optimal()}
        case "vip_optimal":
            return _counts(), OPTIMAL | {"baseline": Optimal()}
        case "weights_optimal":
            return Uniform(8), OPTIMAL | {"baseline": Optimal(), "selection": SPOWeights()}
        case "weights_vip_optimal":
            return _counts(), OPTIMAL | {"baseline": Optimal(), "selection": SPOWeights()}
        # Single rollouts.
        case "single_optimal":
            return Uniform(1), SINGLES | OPTIMAL | {"baseline": Optimal()}
        case "single_optimal_retire":
            return Uniform(1), SINGLES | OPTIMAL | {"baseline": Optimal(), "selection": Retire()}
        case "single_batch":
            return Uniform(1), SINGLES | {"estimator": "batch_optimal"}
        case "single_batch_mixed":
            return Uniform(1), SINGLES | {"estimator": "batch_optimal", "selection": Mixed(group_size=4)}
        # Reuse of correct responses.
        case "reuse":
            return AR3PO(stages=1, rollouts_per_stage=8), {}
        case "vip_reuse":
            return ReusingVIP(rollouts_per_prompt=8, high=MOST), {}
        # A budget of tokens.
        case "tokens_uniform":
            return Uniform(8), LONG
        case "tokens_even":
            return Even(**_of_tokens()), LONG
        case "tokens_vip_rollouts":
            return _vip(), LONG
        case "tokens_vip":
            return VIP(**_of_tokens()), LONG
        case "tokens_hora":
            return HORA(pre_rollouts=4, **_of_tokens()), LONG
        case "tokens_neyman":
            return Neyman(**_of_tokens()), LONG
    # Rules that stop by outcomes, under estimators that are biased by it and one that is not.
    rule, _, estimator = name.rpartition("_by_")
    rules = {
        "ar3po": lambda: AR3PO(reuse="none"),
        "hora": lambda: HORA(pre_rollouts=4, rollouts_per_prompt=8, high=MOST),
        "reinforce_ada": lambda: ReinforceAda(down_sample=False),
    }
    rate = 2e-3 if rule == "reinforce_ada" else HARD["learning_rate"]
    return rules[rule](), {"estimator": estimator, "learning_rate": rate}


def arm(name: str, seeds: Sequence[int] = SEEDS, **changed: Any) -> Values:
    """Return what every seed of an arm reached: area and end of its curve, rollouts and tokens to 80%, and its size."""
    runs = []
    for seed in seeds:
        rule, settings = _arm(name)
        table = {key: value for key, value in {**HARD, **settings, **changed}.items() if value is not None}
        runs.append(_learn(rule, Training(**table, rollout_log="none"), seed))
    return {key: [run[key] for run in runs] for key in runs[0]}


def _learn(rule: Allocator, training: Training, seed: int) -> dict[str, float | None]:
    with tempfile.TemporaryDirectory() as folder:
        Trainer(training, rule, seed, Path(folder)).run()
        run = Run.read(Path(folder))
    reached = np.flatnonzero(run.success >= 0.8)
    return {
        "area": run.area,
        "area_of_tokens": run.area_to(min(TOKENS, float(run.tokens[-1]))),
        "end": float(run.success[-1]),
        "to_80": run.reached(0.8) if reached.size else None,
        "rollouts_per_prompt": run.rollouts_per_prompt,
        "updates": float(run.updates),
        "rollouts": float(run.rollouts[-1]),
        "tokens": float(run.tokens[-1]),
        "cpu_seconds": run.cpu_seconds,
    }
