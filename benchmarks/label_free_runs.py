"""Run and read the studies of the label-free benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apportion.config import to_toml
from apportion.lab.command import run
from apportion.lab.report.results import Run
from apportion.lab.study.design import RUNS, read_study
from apportion.lab.study.worker import run_directory
from apportion.runs.whole_files import write_whole

Table = dict[str, Any]
Runs = Mapping[str, Sequence[Run]]
"""The runs of every arm, seeds in order."""

SEEDS = (0, 1, 2, 3, 4)
TRAINING: Table = {
    "base": "medium",
    "labels": "none",
    "problems": 256,
    "prompts_per_step": 16,
    "steps": 48,
    "kl": 0.001,
    "held_out": 400,
    "evaluate_every": 12,
    "checkpoint_every": 20,
}


@dataclass(frozen=True)
class Arm:
    """One allocator with one training, as tables of a config. The training has the differences from ``TRAINING``."""

    allocator: Table
    training: Table


def plain_arms(allocators: Mapping[str, Table]) -> dict[str, Arm]:
    """Return arms that differ in their allocator only."""
    return {name: Arm(allocator, {}) for name, allocator in allocators.items()}


def trained(name: str, arms: Mapping[str, Arm], seeds: Sequence[int] = SEEDS, **training: Any) -> Runs:
    """Train and read the study ``runs/NAME``. ``training`` has the differences from ``TRAINING`` for all arms."""
    config = configured(name, arms, seeds, **training)
    code = run(config, [], name=None, resume=False, dry_run=False)
    if code:
        raise SystemExit(code)
    folder = read_study(config, [], None, resume=False).directory
    return {arm: [Run.read(run_directory(folder, arm, seed)) for seed in seeds] for arm in arms}


def configured(name: str, arms: Mapping[str, Arm], seeds: Sequence[int] = SEEDS, **training: Any) -> Path:
    """Write the config of such a study, and return its path."""
    content: Table = {
        "name": name,
        "baseline": next(iter(arms)),
        "seeds": list(seeds),
        "variance_draws": 0,
        "training": TRAINING | training,
        "allocators": {arm: given.allocator for arm, given in arms.items()},
        "trainings": {arm: given.training for arm, given in arms.items() if given.training},
    }
    config = RUNS / f"{name}.toml"
    config.parent.mkdir(exist_ok=True)
    write_whole(config, to_toml(content))
    return config
