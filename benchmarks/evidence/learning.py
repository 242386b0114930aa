"""Runs of the lab for cells: one rule, several seeds, its learning curve and what the policy can do at the end.

A rule is given as a config file would: ``{"name": "vip", "rollouts_per_prompt": 8}``. A sweep chooses its learning rate
on seeds that are not used afterwards.
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import contextmanager
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

SEEDS = tuple(range(10))
"""A central claim needs ten."""
FIVE = SEEDS[:5]
"""The seeds of arms that no central claim is about."""
SWEEP_SEEDS = (100, 101)
RATES = (5e-4, 1e-3, 2e-3)
PASS_AT = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
HARD = {"base": "hard", "prompts_per_step": 16, "rollouts": 12_800, "evaluate_every": 640, "learning_rate": 1e-3}
"""The settings of benchmarks/methods.toml."""

Settings = Mapping[str, Any]
Rule = Settings | Callable[[], Allocator]
Measure = Callable[[Trainer, Run], Mapping[str, Any]]
"""Reads more from a finished run."""


@contextmanager
def trainer_of(allocator, training, seed, kind=Trainer):
    """Yield a trainer of the lab with settings of ``Training``. Its folder, without a log, is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        yield kind(build(Training, {**training, "rollout_log": "none"}), allocator, seed, Path(folder))


def ran(trainer):
    """Return the run of a trainer, which is taken to its end."""
    trainer.run()
    return Run.read(trainer.metrics.parent)


def learn(rule, seed, training, measure=None, kind=Trainer):
    """Train one run to its end and return its ``area``, ``end`` and ``curve``.

    ``training`` are settings of ``Training``; a baseline and a selection are given as tables, as in a config file.
    ``measure`` reads the finished run and adds its own values.
    """
    with trainer_of(made(rule), training, seed, kind) as trainer:
        run = ran(trainer)
        more = measure(trainer, run) if measure else {}
    return {"area": run.area, "end": run.final("success"), "curve": run.success.round(4).tolist(), **more}


def made(rule):
    """Return the allocator of a rule."""
    return rule() if callable(rule) else build(Allocator, rule)


def learn_seeds(rule, training, seeds=SEEDS, **more):
    """Return the values of ``learn`` for every seed, as lists by name. The curve is the mean over seeds."""
    return over_runs([learn(rule, seed, training, **more) for seed in seeds])


def by_name(runs):
    """Return the values of runs as lists by name."""
    return {key: [run[key] for run in runs] for key in runs[0]}


def over_runs(runs):
    """Return the values of runs as lists by name. The curve is the mean over them."""
    found = by_name(runs)
    return found | {"curve": np.mean(found["curve"], axis=0).round(4).tolist()}


def swept(rule, training, rates=RATES, sweep_seeds=SWEEP_SEEDS, **more):
    """Return ``learn_seeds`` at the rate with the largest mean area over ``sweep_seeds``, and that ``rate``.

    A single rate is not swept.
    """
    areas = [
        float(np.mean([learn(rule, seed, {**training, "learning_rate": rate})["area"] for seed in sweep_seeds]))
        for rate in (rates if len(rates) > 1 else ())
    ]
    best = rates[int(np.argmax(areas or [0.0]))]
    return {**learn_seeds(rule, {**training, "learning_rate": best}, **more), "rate": best, "sweep": areas}


def passes(success):
    """Return pass@k by k, exactly: the mean of 1 - (1 - p)^k over problems [P]."""
    misses = np.log1p(-np.minimum(success, 1 - 1e-15))
    return {str(k): float(np.mean(-np.expm1(k * misses))) for k in PASS_AT}


def majority_at(trainer, k=32, problems=200, seed=0):
    """Return maj@k on held-out problems: the share whose most frequent answer of ``k`` is right. Ties count in part."""
    held_out = held_out_problems(problems, trainer.training.task)
    sampler = LedgerSampler(trainer.policy, seed)
    scores = []
    for group in sampler([problem.prompt() for problem in held_out], [k] * problems):
        votes = Counter(rollout.answer for rollout in group if rollout.answer is not None)
        right = {rollout.answer for rollout in group if rollout.correct}
        leaders = [answer for answer, number in votes.items() if number == max(votes.values())]
        scores.append(float(np.mean([answer in right for answer in leaders])) if leaders else 0.0)
    return float(np.mean(scores))


def abilities(trainer, _):
    """Return what the trained policy can do on held-out problems: exact pass@k by k, and maj@32."""
    success = exact_success(trainer.policy, held_out_problems(500, trainer.training.task))
    return {"pass_at": passes(success), "maj_32": majority_at(trainer)}


def with_half_width(values):
    """Return the mean of ``values``, one a prompt, and the half width of its 95% interval."""
    return [float(np.mean(values)), float(1.96 * np.std(values, ddof=1) / np.sqrt(len(values)))]
