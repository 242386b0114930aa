"""One process of a study. It trains on one thread, reports each step, and stops after a step if it must."""

import json
import multiprocessing
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from apportion.allocators import Allocator
from apportion.lab.measure.variance import compare
from apportion.lab.policy.base import base_policy
from apportion.lab.training.pool import Pool
from apportion.lab.training.settings import Training
from apportion.lab.training.trainer import Trainer
from apportion.lab.world.task import held_out_problems
from apportion.runs.whole_files import write_whole

SHOWN = ("step", "rollouts", "tokens", "mean_16", "success", "informative", "counts")
"""Keys of a step's record that the display shows."""
MEASURED_PROMPTS = 64
MEASURED = {"rollouts_per_prompt": 8, "low": 3, "high": 24, "estimator": "rloo", "seed": 0}
_channel: dict[str, Any] = {}


def begin(records: Any, stop: Any) -> None:
    """Set up the process: one thread, Ctrl-C left to the parent, a queue of ``records`` and an event ``stop``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _channel.update(records=records, stop=stop)


def train(directory: Path, training: Training, allocator: Allocator, seed: int, pool: Pool, name: str) -> bool:
    """Train one run, from its checkpoint in ``directory`` if there is one. Return False if it was stopped.

    The display knows the run by its ``name``.
    """
    trainer = Trainer(training, allocator, seed, directory, pool)

    def show(record: dict[str, Any]) -> bool:
        _channel["records"].put((name, {key: record[key] for key in SHOWN if key in record}))
        parent = multiprocessing.parent_process()
        return not _channel["stop"].is_set() and (parent is None or parent.is_alive())

    show({"step": trainer.steps, "rollouts": trainer.asked, "tokens": trainer.sampler.tokens})
    return trainer.run(show)


def measure(path: Path, training: Training, draws: int) -> bool:
    """Measure the gradient variance of the base under each allocation, before any training. Write it to ``path``."""
    problems = held_out_problems(MEASURED_PROMPTS, training.task)
    rows = compare(base_policy(training.base), problems, draws=draws, **MEASURED)
    write_whole(path, json.dumps([asdict(row) for row in rows], indent=2, default=float) + "\n")
    return True


def is_finished(directory: Path, training: Training) -> bool:
    """Return whether the metrics of the run in ``directory`` reach the length of its ``training``."""
    metrics = directory / "metrics.jsonl"
    lines = metrics.read_text(encoding="utf-8").splitlines() if metrics.exists() else []
    if not lines or not lines[-1].endswith("}"):
        return False
    return bool(json.loads(lines[-1])[training.unit] >= training.length)


def run_directory(directory: Path, arm: str, seed: int) -> Path:
    """Return the folder in which one run of the study in ``directory`` keeps its metrics and checkpoint."""
    return directory / f"{arm}-seed{seed}"
