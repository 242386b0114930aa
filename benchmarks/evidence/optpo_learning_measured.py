"""Runs of the lab without labels, for the claims on OptPO: what a run spends, and how well its policy answers."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from apportion.allocators import Allocator, OptPO
from apportion.allocators.votes.base import Status
from apportion.config import build
from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.report.results import Run
from apportion.lab.training.settings import Training
from apportion.lab.training.trainer import Trainer
from apportion.lab.world.task import TASKS
from apportion.stopping import leader, top_two
from apportion.types import Counts, Prompt, Rollout
from benchmarks.evidence.cell import Values
from benchmarks.evidence.learning import SEEDS

TRAINING: Mapping[str, Any] = {
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
    "rollout_log": "none",
}
"""Three passes over 128 prompts. The rate is that of benchmarks/label_free.py, chosen there for TTRL."""
ENDS = ("mean_16", "pass_16", "pass_1", "maj_16", "prompts_success", "success", "rollouts", "tokens")
"""What is read at the end of a run, and what is read along it."""
ALONG = ("mean_16", "tokens", "rollouts")

Rule = Mapping[str, Any] | Callable[[], Allocator]


@dataclass(frozen=True)
class TiesKept(OptPO):
    """OptPO as its paper ends a vote: a tie at M samples is decided for L(M), the first to appear."""

    def _outcome(self, votes: Counts) -> tuple[int | None, Status, float]:
        place, status, share = super()._outcome(votes)
        tied = status == "tied" and top_two(votes[-1])[0] > 0
        return (int(leader(votes[-1])), status, share) if tied else (place, status, share)


class TimedSampler(LedgerSampler):
    """A sampler that adds up its CPU time in ``seconds``."""

    seconds = 0.0

    def __call__(self, prompts: Sequence[Prompt], counts: ArrayLike) -> list[list[Rollout]]:
        started = time.process_time()
        try:
            return super().__call__(prompts, counts)
        finally:
            self.seconds += time.process_time() - started


def run(rule: Rule, seed: int, changes: Mapping[str, Any], top_p: float = 1.0) -> dict[str, Any]:
    """Train one run and return its ``ENDS``, its labels, its CPU time for rollouts, and its curves of ``ALONG``."""
    settings = build(Training, {**TRAINING, **changes})
    allocator = rule() if callable(rule) else build(Allocator, rule)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(settings, allocator, seed, Path(folder))
        longest = TASKS[settings.task].max_new_tokens
        sampler = TimedSampler(trainer.policy, seed, settings.temperature, longest, reward=None, top_p=top_p)
        trainer.sampler = sampler
        trainer.run()
        found = Run.read(Path(folder))
    return {
        **{key: round(found.final(key), 5) for key in ENDS},
        "start": round(float(found.evaluations["mean_16"][0]), 5),
        "labels_right": found.per_label("labels_right"),
        "false_consensus": found.per_label("false_consensus"),
        "unlabelled": float(found.steps["unlabelled"].mean()),
        "rollout_seconds": round(sampler.seconds, 2),
        "seconds": round(found.cpu_seconds, 2),
        "along": {key: found.evaluations[key].round(4).tolist() for key in ALONG},
    }


def trained(
    rule: Rule, changes: Mapping[str, Any] | None = None, top_p: float = 1.0, seeds: Sequence[int] = SEEDS
) -> Values:
    """Return the values of ``run`` for every seed, as lists by name. Curves are means over seeds."""
    runs = [run(rule, seed, changes or {}, top_p) for seed in seeds]
    found: dict[str, Any] = {key: [each[key] for each in runs] for key in runs[0] if key != "along"}
    for key in ALONG:
        found[f"{key}_along"] = np.mean([each["along"][key] for each in runs], axis=0).round(4).tolist()
    found["mean_16_by_seed"] = [each["along"]["mean_16"] for each in runs]
    found["tokens_by_seed"] = [[int(value) for value in each["along"]["tokens"]] for each in runs]
    return found
