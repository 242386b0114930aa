"""The reference trainer, on one screen: rollout, verify, group, estimate, update, observe.

Deterministic from its seed on one thread. Everything it needs to go on is in its checkpoint, so a run that was killed
continues with the very same curve; metrics are one JSON object a step, one line each.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch

from apportion.advantages import ESTIMATORS
from apportion.allocators import Allocator
from apportion.lab.base import base_policy, check_base
from apportion.lab.loss import Row, Weighting, surrogate_loss, training_rows
from apportion.lab.policy import exact_success
from apportion.lab.sampler import LedgerSampler
from apportion.lab.task import held_out_problems, training_problems
from apportion.loop import collect
from apportion.types import Batch, Group

ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class Training:
    """Settings of a run in the lab. Lengths are in rollouts, so that every allocator pays the same.

    ``base`` is easy, medium or hard, or a folder with a saved policy.
    ``rollouts`` is the budget of the whole run; the step that reaches it is the last. A ``weighting`` of "prompt" gives
    every prompt of a step the same share of the loss. ``checkpoint_every`` counts steps.
    """

    base: str = "medium"
    problems: int = 512
    prompts_per_step: int = 32
    rollouts: int = 30_720
    estimator: Literal["grpo", "dr_grpo", "rloo"] = "rloo"
    weighting: Weighting = "prompt"
    learning_rate: float = 5e-4
    updates_per_step: int = 1
    clip_ratio: float = 0.2
    kl: float = 0.0
    max_grad_norm: float = 1.0
    temperature: float = 1.0
    held_out: int = 1000
    evaluate_every: int = 1024
    checkpoint_every: int = 20

    def __post_init__(self) -> None:
        check_base(self.base)
        for key in (
            "problems",
            "prompts_per_step",
            "rollouts",
            "updates_per_step",
            "evaluate_every",
            "checkpoint_every",
        ):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, got {getattr(self, key)}; leave it out for the default")
        for key in ("learning_rate", "clip_ratio", "max_grad_norm", "temperature"):
            if not 0 < getattr(self, key) < float("inf"):
                raise ValueError(f"{key} must be positive, got {getattr(self, key)}; leave it out for the default")
        if self.estimator not in ESTIMATORS or self.weighting not in get_args(Weighting):
            raise ValueError(
                f"estimator must be one of {', '.join(ESTIMATORS)} and weighting of {', '.join(get_args(Weighting))}, "
                f"got {self.estimator!r} and {self.weighting!r}; check the spelling"
            )
        if self.kl < 0:
            raise ValueError(f"kl must be at least 0, got {self.kl}; 0 leaves the reference out")
        if self.prompts_per_step > self.problems:
            raise ValueError(
                f"prompts_per_step must be at most problems, got {self.prompts_per_step} of {self.problems}; "
                "a step draws distinct prompts"
            )
        if not 1 <= self.held_out <= 1000:
            raise ValueError(f"held_out must be between 1 and 1000, got {self.held_out}; the pool has 1000 problems")


class Trainer:
    """One run: ``Trainer(training, allocator, seed, directory).run()`` starts or goes on until the budget is spent."""

    def __init__(self, training: Training, allocator: Allocator, seed: int, directory: Path) -> None:
        torch.set_num_threads(1)
        self.training, self.allocator, self.seed = training, allocator, seed
        self.metrics, self.checkpoint = directory / "metrics.jsonl", directory / "checkpoint.pt"
        directory.mkdir(parents=True, exist_ok=True)
        self.policy = base_policy(training.base)
        self.reference = base_policy(training.base) if training.kl > 0 else None
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(), lr=training.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
        )
        self.sampler = LedgerSampler(self.policy, seed=seed, temperature=training.temperature)
        self.held_out = held_out_problems(training.held_out)
        self.problems = training_problems(training.problems, seed)
        self.prompts = [problem.prompt() for problem in self.problems]
        self.steps, self.asked, self.evaluations = 0, 0, 0
        allocator.prepare(self.prompts)
        if self.checkpoint.exists():
            self._restore()
        else:
            self.metrics.unlink(missing_ok=True)

    @property
    def finished(self) -> bool:
        return self.asked >= self.training.rollouts

    def run(self, told: Callable[[dict[str, Any]], bool] = lambda record: True) -> bool:
        """Steps until the budget is spent (True) or ``told``, called with each step's record, returns False (False)."""
        with self.metrics.open("a") as lines:
            if not self.asked:
                self._write(lines, {"step": 0, "rollouts": 0, "tokens": 0, **self._evaluate()})
            while not self.finished:
                record = self._step()
                self._write(lines, record)
                go_on = told(record)
                if self.finished or not go_on or self.steps % self.training.checkpoint_every == 0:
                    self._save(lines.tell())
                if not go_on:
                    return self.finished
        return True

    def _step(self) -> dict[str, Any]:
        started = time.process_time()
        chosen = self._next_problems()
        success = exact_success(self.policy, [self.problems[q] for q in chosen])
        batch = collect(self.allocator, [self.prompts[q] for q in chosen], self.sampler)
        groups = self.allocator.groups(batch)
        rows = training_rows(groups, ESTIMATORS[self.training.estimator], self.training.weighting)
        norm = self._update([row for row in rows if row.advantage or self.training.kl])
        self.allocator.observe(batch)
        self.steps += 1
        self.asked += int(batch.asked.sum())
        record = {"step": self.steps, "rollouts": self.asked, "tokens": self.sampler.tokens}
        record |= _step_metrics(batch, groups, success) | {"grad_norm": norm}
        if self.finished or self.asked // self.training.evaluate_every > self.evaluations:
            self.evaluations = self.asked // self.training.evaluate_every
            record |= self._evaluate()
        return record | {"cpu_seconds": time.process_time() - started}

    def _next_problems(self) -> list[int]:
        """Indices of the step's problems: epoch by epoch in seeded orders, a function of the step's number alone."""
        size = self.training.prompts_per_step
        per_epoch = self.training.problems // size
        epoch, place = divmod(self.steps, per_epoch)
        order = np.random.default_rng([self.seed, epoch]).permutation(self.training.problems)
        return [int(q) for q in order[place * size : (place + 1) * size]]

    def _update(self, rows: list[Row]) -> float:
        """``updates_per_step`` optimiser steps on ``rows`` (none without rows); the last unclipped gradient norm."""
        settings, norm = self.training, 0.0
        rows = sorted(rows, key=lambda row: len(row.prompt) + len(row.completion.tokens))
        for _ in range(settings.updates_per_step if rows else 0):
            self.optimizer.zero_grad()
            for first in range(0, len(rows), ROWS_AT_ONCE):
                surrogate_loss(
                    self.policy,
                    rows[first : first + ROWS_AT_ONCE],
                    clip_ratio=settings.clip_ratio,
                    temperature=settings.temperature,
                    kl=settings.kl,
                    reference=self.reference,
                ).backward()
            norm = float(torch.nn.utils.clip_grad_norm_(self.policy.parameters(), settings.max_grad_norm))
            self.optimizer.step()
        return norm

    def _evaluate(self) -> dict[str, Any]:
        """Exact success and pass@8 and pass@32 on the held-out problems: no sampling, no evaluation noise."""
        p = exact_success(self.policy, self.held_out)
        return {"success": p.mean(), "pass_8": (1 - (1 - p) ** 8).mean(), "pass_32": (1 - (1 - p) ** 32).mean()}

    def _write(self, lines: Any, record: dict[str, Any]) -> None:
        lines.write(json.dumps(record, default=float) + "\n")
        lines.flush()

    def _save(self, metrics_end: int) -> None:
        state = {
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "sampler": self.sampler.state_dict(),
            "allocator": self.allocator.state_dict(),
            "counters": (self.steps, self.asked, self.evaluations, metrics_end),
        }
        whole, unfinished = io.BytesIO(), self.checkpoint.with_suffix(".tmp")
        torch.save(state, whole)  # to memory first: on a full disk the file then fails as an OSError
        unfinished.write_bytes(whole.getbuffer())
        os.replace(unfinished, self.checkpoint)

    def _restore(self) -> None:
        state = torch.load(self.checkpoint, weights_only=False)
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.sampler.load_state_dict(state["sampler"])
        self.allocator.load_state_dict(state["allocator"])
        self.steps, self.asked, self.evaluations, metrics_end = state["counters"]
        os.truncate(self.metrics, metrics_end)


def _step_metrics(batch: Batch, groups: list[Group], success: np.ndarray) -> dict[str, Any]:
    """What a step spent and on whom; per-prompt lists [P] of exact p, predicted p, and rollouts."""
    return {
        "train_success": batch.successes.sum() / max(1, batch.trials.sum()),
        "informative": sum(group.informative for group in groups) / max(1, len(groups)),
        "rounds": batch.round,
        "p": success.round(4).tolist(),
        "predicted": batch.belief.mean.round(4).tolist(),
        "counts": batch.asked.tolist(),
    }
