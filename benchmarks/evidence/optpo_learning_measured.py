"""Runs of the lab without labels, for the claims on OptPO: what a run spends, and how well its policy answers."""

from __future__ import annotations

import time

from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.world.task import TASKS
from benchmarks.evidence.learning import SEEDS, Settings, by_name, made, ran, trainer_of

TRAINING: Settings = {
    "base": "medium",
    "labels": "none",
    "problems": 128,
    "prompts_per_step": 16,
    "steps": 24,
    "kl": 0.001,
    "held_out": 100,
    "evaluate_every": 8,
    "checkpoint_every": 1000,
    "estimator": "grpo",
    "learning_rate": 4e-4,
}
"""Three passes over 128 prompts. The rate is that of benchmarks/label_free.py, chosen there for TTRL."""
ENDS = ("mean_16", "pass_16", "rollouts", "tokens")
"""What is read at the end of a run."""


class TimedSampler(LedgerSampler):
    """A sampler that adds up its CPU time in ``seconds``."""

    seconds = 0.0

    def __call__(self, prompts, counts):
        started = time.process_time()
        try:
            return super().__call__(prompts, counts)
        finally:
            self.seconds += time.process_time() - started


def run(rule, seed, changes):
    """Train one run and return its ``ENDS``, its CPU time for rollouts, and its curves of mean@16 and of tokens."""
    with trainer_of(made(rule), {**TRAINING, **changes}, seed) as trainer:
        how = seed, trainer.training.temperature, TASKS[trainer.training.task].max_new_tokens
        trainer.sampler = TimedSampler(trainer.policy, *how, reward=None)
        found = ran(trainer)
    return {
        **{key: round(found.final(key), 5) for key in ENDS},
        "rollout_seconds": round(trainer.sampler.seconds, 2),
        "mean_16_by_seed": found.evaluations["mean_16"].round(4).tolist(),
        "tokens_by_seed": found.tokens.astype(int).tolist(),
    }


def trained(rule, changes=None, seeds=SEEDS):
    """Return the values of ``run`` for every seed, as lists by name."""
    return by_name([run(rule, seed, changes or {}) for seed in seeds])


def greedy(_, run):
    """Return pass@1 of the greedy answers at the end of a run."""
    return {"pass_1": run.final("pass_1")}
