"""One process of a study: runs on one thread, reports each step, and stops at a step's end when it is told to."""

from __future__ import annotations

import json
import multiprocessing
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from apportion.config import build, load
from apportion.files import write_whole
from apportion.lab.base import base_policy, task_of
from apportion.lab.design import Study, check_prompts
from apportion.lab.settings import Training
from apportion.lab.task import held_out_problems
from apportion.lab.trainer import Trainer
from apportion.lab.variance import compare

_channel: dict[str, Any] = {}

TOLD = ("step", "rollouts", "tokens", "mean_16", "success", "informative", "counts")
"""What of a step's record the display is told."""
MEASURED_PROMPTS = 64
MEASURED = {"rollouts_per_prompt": 8, "low": 3, "high": 24, "estimator": "rloo", "seed": 0}


def begin(told: Any, stop: Any) -> None:
    """Sets the process up: one thread, Ctrl-C left to the parent, ``told`` for records and ``stop`` for the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _channel.update(told=told, stop=stop)


def train(directory: Path, arm: str, seed: int) -> bool:
    """Trains one run of the study in ``directory``, from its checkpoint if there is one; False where it was stopped.

    Raises ConfigError where the file of prompts has changed since the study was started.
    """
    study = _study(directory)
    check_prompts(directory, study.training)
    run = run_directory(directory, arm, seed)
    trainer = Trainer(study.training_of(arm), study.allocators[arm], seed, run)

    def told(record: dict[str, Any]) -> bool:
        kept = {key: record[key] for key in TOLD if key in record}
        _channel["told"].put((f"{arm}, seed {seed}", kept))
        return not _should_stop()

    told({"step": trainer.steps, "rollouts": trainer.asked, "tokens": trainer.sampler.tokens})
    return trainer.run(told)


def measure(directory: Path) -> bool:
    """Measures the gradient variance of the base under each allocation, before any training: ``variance.json``."""
    study = _study(directory)
    rows = compare(
        base_policy(study.training.base),
        held_out_problems(MEASURED_PROMPTS, task_of(study.training.base)),
        draws=study.variance_draws,
        **MEASURED,
    )
    write_whole(directory / "variance.json", json.dumps([asdict(row) for row in rows], indent=2, default=float) + "\n")
    return True


def is_finished(directory: Path, arm: str, seed: int, training: Training) -> bool:
    """Whether the metrics of a run reach the length of its ``training``: nothing is left to do."""
    metrics = run_directory(directory, arm, seed) / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    if not lines or not lines[-1].endswith("}"):
        return False
    return bool(json.loads(lines[-1])[training.unit] >= training.length)


def run_directory(directory: Path, arm: str, seed: int) -> Path:
    """Where one run keeps its metrics and checkpoint."""
    return directory / f"{arm}-seed{seed}"


def _study(directory: Path) -> Study:
    return build(Study, load(directory / "config.toml"))


def _should_stop() -> bool:
    parent = multiprocessing.parent_process()
    return _channel["stop"].is_set() or (parent is not None and not parent.is_alive())
