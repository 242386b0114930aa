"""Learning curves under VIP and the rules that its tables compare it with, on the hard base of the lab.

Every arm spends 128 rollouts a step: 16 prompts with 8 each on average, or 8 prompts with 16 each. Counts lie between 3
and three times the average. Arms of one budget and seed see the same prompts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from transformers import Qwen2ForCausalLM

from apportion.allocators import VIP, Allocator, InverseAccuracy, InverseVariance, Uniform
from apportion.allocators.neyman import NeymanEstimator
from apportion.allocators.vip import gradient_variance
from apportion.config import build
from apportion.lab.policy.exact import exact_success
from apportion.lab.report.results import Run
from apportion.lab.training.settings import Training
from apportion.lab.training.trainer import Trainer
from apportion.lab.world.task import Problem
from apportion.predictors import EmpiricalBayes, GaussianProcess, Predictor, Ridge, Shuffled
from apportion.types import Batch, Belief, Prompt
from benchmarks.evidence.cell import Values
from benchmarks.evidence.learning import HARD, RATES, SEEDS, SWEEP_SEEDS, abilities

SWEEP_SEED = SWEEP_SEEDS[0]
STEP = 128
"""Rollouts of a step."""
LOW = 3
KNOWN = 1e6
"""Rollouts that the belief of a known probability is worth."""


@dataclass
class CurrentSuccess(Predictor):
    """Knows the exact success of the policy that is being trained, which has to be given before the first step."""

    name: ClassVar[str] = "current_success"
    policy: Qwen2ForCausalLM | None = field(default=None, init=False, repr=False, compare=False)

    def predict(self, prompts: Sequence[Prompt]) -> Belief:
        p = exact_success(self.policy, [Problem.parse(prompt.text) for prompt in prompts])
        return Belief.from_mean(np.clip(p, 1 / KNOWN, 1 - 1 / KNOWN), KNOWN)

    def update(self, batch: Batch) -> None:
        """Do nothing, because all is known."""


def arm(
    rule: str,
    rollouts: int,
    estimator: NeymanEstimator,
    rate: float,
    seeds: Sequence[int] = SEEDS,
    length: int = 12_800,
) -> Values:
    """Return what ``rule`` learns with so many rollouts a prompt, as lists over seeds. ``curve`` is the mean."""
    runs = [_train(rule, rollouts, estimator, rate, seed, length) for seed in seeds]
    curve = np.mean([run.pop("curve") for run in runs], axis=0).tolist()
    return {"rate": rate, "curve": curve, **{key: [run[key] for run in runs] for key in runs[0]}}


def sweep(rule: str, settings: Sequence[tuple[int, NeymanEstimator]], length: int = 12_800) -> Values:
    """Return the area of ``rule`` for every rate of the sweep, at its seed, by setting: "8_rloo"."""
    return {
        f"{n}_{estimator}": {
            f"{rate:g}": _train(rule, n, estimator, rate, SWEEP_SEED, length)["area"] for rate in RATES
        }
        for n, estimator in settings
    }


def _train(rule: str, rollouts: int, estimator: NeymanEstimator, rate: float, seed: int, length: int) -> dict[str, Any]:
    """Train one run and return what it learns, and how its counts and beliefs agree with the exact success.

    ``mean``, ``pass_32`` and ``maj_32`` are of the end; ``area`` and ``pass_area`` are means over the run.
    ``variance`` is the variance that the paper's formula gives the counts at the exact p, over that of equal counts.
    """
    known = CurrentSuccess()
    settings = {**HARD, "prompts_per_step": STEP // rollouts, "estimator": estimator, "learning_rate": rate}
    training = build(Training, {**settings, "rollouts": length, "rollout_log": "none"})
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(training, _rule(rule, rollouts, estimator, known), seed, Path(folder))
        known.policy = trainer.policy
        trainer.run()
        run = Run.read(Path(folder))
    able = abilities(trainer)
    p, counts, predicted = (run.steps[key] for key in ("p", "counts", "predicted"))
    equal = gradient_variance(p, np.full(len(p), rollouts), estimator).sum()
    at, hits = run.rollouts, run.evaluations["pass_32"]
    return {
        "curve": run.success,
        "area": run.area,
        "mean": able["pass_at"]["1"],
        "pass_32": able["pass_at"]["32"],
        "maj_32": able["maj_32"],
        "pass_area": float(np.trapezoid(hits, at) / (at[-1] - at[0])),
        "pass_half": float(np.interp(length / 2, at, hits)),
        "mean_half": float(np.interp(length / 2, at, run.success)),
        "variance": float(gradient_variance(p, counts, estimator).sum() / equal),
        "belief": float(np.corrcoef(p, predicted)[0, 1]) if np.ptp(predicted) > 0 else None,
        "spread": float(np.std(counts)),
    }


def _rule(rule: str, rollouts: int, estimator: NeymanEstimator, known: CurrentSuccess) -> Allocator:
    """Return an arm by name: a predictor under VIP's allocation, a heuristic on the Gaussian process, or uniform."""
    if rule == "uniform":
        return Uniform(rollouts_per_prompt=rollouts)
    bounds = {"rollouts_per_prompt": rollouts, "low": LOW, "high": 3 * rollouts}
    if rule == "inverse_accuracy":
        return InverseAccuracy(**bounds, predictor=GaussianProcess())
    if rule == "inverse_variance":
        return InverseVariance(**bounds, predictor=GaussianProcess())
    predictor = {
        "gp": GaussianProcess,
        "belief": EmpiricalBayes,
        "ridge": Ridge,
        "exact": lambda: known,
        "shuffled": lambda: Shuffled(known),
    }[rule]()
    return VIP(**bounds, estimator=estimator, predictor=predictor)
