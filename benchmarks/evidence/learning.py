"""Runs of the lab for cells: one rule, several seeds, its learning curve and what the policy can do at the end.

A rule is given as a config file would: ``{"name": "vip", "rollouts_per_prompt": 8}``. A sweep chooses its learning rate
on seeds that are not used afterwards.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from apportion.allocators import Allocator
from apportion.config import build
from apportion.lab.policy.exact import exact_success
from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.report.results import Run
from apportion.lab.training.settings import Training
from apportion.lab.training.trainer import Trainer
from apportion.lab.world.task import held_out_problems
from apportion.types import Floats
from benchmarks.evidence.claim import Values

SEEDS = tuple(range(5))
SWEEP_SEEDS = (100, 101)
RATES = (5e-4, 1e-3, 2e-3)
PASS_AT = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
HARD = {"base": "hard", "prompts_per_step": 16, "rollouts": 12_800, "evaluate_every": 640, "learning_rate": 1e-3}
"""The settings of benchmarks/methods.toml."""

Settings = Mapping[str, Any]
Measure = Callable[[Trainer], Mapping[str, Any]]
"""Reads more from a finished run."""


def learn(
    rule: Settings | Callable[[], Allocator], seed: int, training: Settings, measure: Measure | None = None
) -> dict[str, Any]:
    """Train one run to its end and return its ``area``, ``end``, ``to_80`` (None: never), ``curve`` and ``rollouts``.

    ``training`` are settings of ``Training``; a baseline and a selection are given as tables, as in a config file.
    ``measure`` reads the finished run and adds its own values.
    """
    allocator = rule() if callable(rule) else build(Allocator, rule)
    settings = build(Training, {**training, "rollout_log": "none"})
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(settings, allocator, seed, Path(folder))
        trainer.run()
        run = Run.read(Path(folder))
    reached = run.reached(0.8)
    found: dict[str, Any] = {
        "area": run.area,
        "end": float(run.success[-1]),
        "to_80": float(reached) if np.isfinite(reached) else None,
        "curve": [round(float(value), 4) for value in run.success],
        "rollouts": [int(value) for value in run.rollouts],
    }
    return found if measure is None else found | dict(measure(trainer))


def learn_seeds(
    rule: Settings | Callable[[], Allocator],
    training: Settings,
    seeds: Sequence[int] = SEEDS,
    measure: Measure | None = None,
) -> Values:
    """Return the values of ``learn`` for every seed, as lists by name. The curve is the mean over seeds."""
    runs = [learn(rule, seed, training, measure) for seed in seeds]
    found = {key: [run[key] for run in runs] for key in runs[0] if key not in ("curve", "rollouts")}
    shortest = min(len(run["curve"]) for run in runs)
    curves = np.array([run["curve"][:shortest] for run in runs])
    return found | {"curve": curves.mean(0).round(4).tolist(), "rollouts": runs[0]["rollouts"][:shortest]}


def swept(
    rule: Settings | Callable[[], Allocator],
    training: Settings,
    rates: Sequence[float] = RATES,
    seeds: Sequence[int] = SEEDS,
    sweep_seeds: Sequence[int] = SWEEP_SEEDS,
    measure: Measure | None = None,
) -> Values:
    """Return ``learn_seeds`` at the rate with the largest mean area over ``sweep_seeds``, and that ``rate``."""
    areas = [
        np.mean([learn(rule, seed, {**training, "learning_rate": rate})["area"] for seed in sweep_seeds])
        for rate in rates
    ]
    best = rates[int(np.argmax(areas))]
    found = learn_seeds(rule, {**training, "learning_rate": best}, seeds, measure)
    return {**found, "rate": best, "sweep": [float(area) for area in areas]}


def held_out_success(trainer: Trainer, problems: int = 500) -> Floats:
    """Return the exact success [P] of the trained policy on held-out problems."""
    return exact_success(trainer.policy, held_out_problems(problems, trainer.training.task))


def pass_at(success: Floats, k: int) -> float:
    """Return pass@k, exactly: the mean of 1 - (1 - p)^k over problems [P]."""
    return float(np.mean(-np.expm1(k * np.log1p(-np.minimum(success, 1 - 1e-15)))))


def majority_at(trainer: Trainer, k: int = 32, problems: int = 200, seed: int = 0) -> float:
    """Return maj@k on held-out problems: the share whose most frequent answer of ``k`` is right. Ties count in part."""
    held_out = held_out_problems(problems, trainer.training.task)
    sampler = LedgerSampler(trainer.policy, seed)
    groups = sampler([problem.prompt() for problem in held_out], [k] * problems)
    scores = []
    for group in groups:
        votes: dict[str, list[bool]] = {}
        for rollout in group:
            if rollout.answer is not None:
                votes.setdefault(rollout.answer, []).append(bool(rollout.correct))
        most = max(map(len, votes.values()), default=0)
        leaders = [own[0] for own in votes.values() if len(own) == most]
        scores.append(float(np.mean(leaders)) if leaders else 0.0)
    return float(np.mean(scores))


def abilities(trainer: Trainer) -> Mapping[str, Any]:
    """Return what the trained policy can do on held-out problems: exact pass@k by k, and maj@32."""
    success = held_out_success(trainer)
    return {"pass_at": {str(k): pass_at(success, k) for k in PASS_AT}, "maj_32": majority_at(trainer)}
