"""Learning curves under VIP and the rules that its tables compare it with, on the hard base of the lab.

Every arm spends 128 rollouts a step: 16 prompts with 8 each on average, or 8 prompts with 16 each. Counts lie between 3
and three times the average. Arms of one budget and seed see the same prompts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np
from transformers import Qwen2ForCausalLM

from apportion.advantages import advantages_of
from apportion.allocators import VIP, InverseAccuracy, InverseVariance, Uniform
from apportion.lab.policy.exact import exact_success
from apportion.lab.world.task import Problem
from apportion.predictors import EmpiricalBayes, GaussianProcess, Predictor, Shuffled
from apportion.types import Belief
from benchmarks.evidence.ar3po_lab import FollowedTrainer
from benchmarks.evidence.learning import (
    HARD,
    RATES,
    SEEDS,
    SWEEP_SEEDS,
    abilities,
    learn_seeds,
    over_runs,
    ran,
    trainer_of,
)
from benchmarks.ridge import Ridge

SWEEP_SEED = SWEEP_SEEDS[0]
STEP = 128
"""Rollouts of a step."""
LOW = 3
KNOWN = 1e6
"""Rollouts that the belief of a known probability is worth."""
HEURISTICS = {"inverse_accuracy": InverseAccuracy, "inverse_variance": InverseVariance}


@dataclass
class CurrentSuccess(Predictor):
    """Knows the exact success of the policy that is being trained, which has to be given before the first step."""

    name: ClassVar[str] = "current_success"
    policy: Qwen2ForCausalLM | None = field(default=None, init=False, repr=False, compare=False)

    def predict(self, prompts):
        p = exact_success(self.policy, [Problem.parse(prompt.text) for prompt in prompts])
        return Belief.from_mean(np.clip(p, 1 / KNOWN, 1 - 1 / KNOWN), KNOWN)

    def update(self, batch):
        """Do nothing, because all is known."""


def arm(rule, rollouts, estimator, rate):
    """Return what ``rule`` learns with so many rollouts a prompt, as lists over seeds. ``curve`` is the mean."""
    return {"rate": rate, **over_runs([_train(rule, rollouts, estimator, rate, seed) for seed in SEEDS])}


def sweep(rule, settings):
    """Return the area of ``rule`` for every rate of the sweep, at its seed, by setting: "8_rloo"."""
    return {
        f"{n}_{estimator}": {f"{rate:g}": _train(rule, n, estimator, rate, SWEEP_SEED)["area"] for rate in RATES}
        for n, estimator in settings
    }


def _train(rule, rollouts, estimator, rate, seed):
    """Train one run and return what it learns. ``mean``, ``pass_32`` and ``maj_32`` are of the end."""
    known = CurrentSuccess()
    training = {**HARD, "prompts_per_step": STEP // rollouts, "estimator": estimator, "learning_rate": rate}
    with trainer_of(_rule(rule, rollouts, estimator, known), training, seed) as trainer:
        known.policy = trainer.policy
        run = ran(trainer)
        able = abilities(trainer, run)
    return {
        "curve": run.success,
        "area": run.area,
        "mean": able["pass_at"]["1"],
        "pass_32": able["pass_at"]["32"],
        "maj_32": able["maj_32"],
    }


def _rule(rule, rollouts, estimator, known):
    """Return an arm by name: a predictor under VIP's allocation, or a heuristic on the Gaussian process."""
    bounds = {"rollouts_per_prompt": rollouts, "low": LOW, "high": 3 * rollouts}
    if rule in HEURISTICS:
        return HEURISTICS[rule](**bounds, predictor=GaussianProcess())
    predictor = {
        "gp": GaussianProcess,
        "belief": EmpiricalBayes,
        "ridge": Ridge,
        "exact": lambda: known,
        "shuffled": lambda: Shuffled(known),
    }[rule]()
    return VIP(**bounds, estimator=estimator, predictor=predictor)


class AdvantageTrainer(FollowedTrainer):
    """A trainer that notes the mean absolute advantage of the rollouts of every step."""

    def _log(self, batch, groups):
        self.notes.append(np.abs(advantages_of(groups, self.training.estimator)).mean())


def seen(rule, rollouts):
    """Return what "uniform" groups or another rule see in training under Dr. GRPO, as lists over seeds."""
    training = {**HARD, "prompts_per_step": STEP // rollouts, "estimator": "dr_grpo"}
    made = partial(_rule, rule, rollouts, "dr_grpo", CurrentSuccess())
    own = partial(Uniform, rollouts) if rule == "uniform" else made
    return learn_seeds(own, training, measure=signals, kind=AdvantageTrainer)


def signals(trainer, run):
    """Return means over steps: the reward of rollouts, the exact success of prompts, and the size of advantages."""
    steps, size = run.steps, np.mean(trainer.notes)
    return {"reward": steps["train_reward"].mean(), "success": steps["p"].mean(), "absolute advantage": size}
