"""Learning curves under VIP and the rules that its tables compare it with, on the hard base of the lab.

Every arm spends 128 rollouts a step: 16 prompts with 8 each on average, or 8 prompts with 16 each. Counts lie between 3
and three times the average. Arms of one budget and seed see the same prompts.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from apportion.advantages import advantages_of
from apportion.allocators import VIP, InverseAccuracy, InverseVariance, Uniform
from apportion.predictors import GaussianProcess, SentenceTransformerEmbedder
from benchmarks.evidence.ar3po_lab import FollowedTrainer
from benchmarks.evidence.learning import HARD, SEEDS, abilities, learn_seeds, over_runs, ran, trainer_of
from benchmarks.ridge import Ridge

STEP = 128
"""Rollouts of a step."""
LOW = 3
SENTENCES = SentenceTransformerEmbedder()
"""The paper's embeddings, of MiniLM."""
HEURISTICS = {"inverse_accuracy": InverseAccuracy, "inverse_variance": InverseVariance}


def arm(rule, rollouts, estimator, rate):
    """Return what ``rule`` learns with so many rollouts a prompt, as lists over seeds. ``curve`` is the mean."""
    return {"rate": rate, **over_runs([_train(rule, rollouts, estimator, rate, seed) for seed in SEEDS])}


def _train(rule, rollouts, estimator, rate, seed):
    """Train one run and return what it learns. ``mean``, ``pass_32`` and ``maj_32`` are of the end."""
    training = {**HARD, "prompts_per_step": STEP // rollouts, "estimator": estimator, "learning_rate": rate}
    with trainer_of(rule_named(rule, rollouts, estimator), training, seed) as trainer:
        run = ran(trainer)
        able = abilities(trainer, run)
    return {
        "curve": run.success,
        "area": run.area,
        "mean": able["pass_at"]["1"],
        "pass_32": able["pass_at"]["32"],
        "maj_32": able["maj_32"],
    }


def rule_named(rule, rollouts, estimator, embedder=SENTENCES):
    """Return an arm by name: a predictor under VIP's allocation, or a heuristic on the Gaussian process."""
    bounds = {"rollouts_per_prompt": rollouts, "low": LOW, "high": 3 * rollouts}
    if rule in HEURISTICS:
        return HEURISTICS[rule](**bounds, predictor=GaussianProcess(embedder))
    return VIP(**bounds, estimator=estimator, predictor={"gp": GaussianProcess, "ridge": Ridge}[rule](embedder))


class AdvantageTrainer(FollowedTrainer):
    """A trainer that notes the mean absolute advantage of the rollouts of every step."""

    def _log(self, batch, groups):
        self.notes.append(np.abs(advantages_of(groups, self.training.estimator)).mean())


def seen(rule, rollouts):
    """Return what "uniform" groups or another rule see in training under Dr. GRPO, as lists over seeds."""
    training = {**HARD, "prompts_per_step": STEP // rollouts, "estimator": "dr_grpo"}
    made = partial(rule_named, rule, rollouts, "dr_grpo")
    own = partial(Uniform, rollouts) if rule == "uniform" else made
    return learn_seeds(own, training, measure=signals, kind=AdvantageTrainer)


def signals(trainer, run):
    """Return means over steps: the reward of rollouts, the exact success of prompts, and the size of advantages."""
    steps, size = run.steps, np.mean(trainer.notes)
    return {"reward": steps["train_reward"].mean(), "success": steps["p"].mean(), "absolute advantage": size}
