"""Runs of AR3PO and its controls in the lab, with what each step asked for, trained on, reused and threw away."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from apportion.allocators import Allocator
from apportion.config import build
from apportion.lab.report.results import Run
from apportion.lab.training.loss import rows_with, token_logprobs
from apportion.lab.training.settings import Training
from apportion.lab.training.trainer import Trainer
from apportion.types import Batch, Floats, Group
from benchmarks.evidence.claim import Values
from benchmarks.evidence.learning import HARD, SEEDS, Settings, learn

GRPO = {**HARD, "estimator": "grpo"}
"""The shared lab setting with the paper's estimator."""
SWEEP_SEED = 100
PARTS = 8
"""Parts of equal rollouts that a run is described in."""
EQUAL_STEPS = 100
"""Steps that uniform groups of 8 take with the rollouts of a run."""
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9)
BANDS = (0.0, 0.2, 0.4, 0.6, 0.8)
"""Lower edges of the bands of exact success that rollouts are averaged in: the bands of the paper's Figure 2d."""
CLIP, FAR = 0.2, 2.0
"""The usual range of clipping a token's importance ratio, and a ratio of a response that counts as far from 1."""


class FollowedTrainer(Trainer):
    """A trainer that notes, for every step, its accounting and the reused responses just before the update."""

    def __init__(self, training: Training, allocator: Allocator, seed: int, directory: Path) -> None:
        super().__init__(training, allocator, seed, directory)
        self.notes: list[dict[str, float]] = []
        self.records: list[dict[str, Any]] = []
        self._sampled, self._update = 0, self.learner.update
        self._ages: list[int] = []
        self._ratios: list[Floats] = []
        self.learner.update = self._watched  # type: ignore[method-assign]

    def _watched(self, groups: Sequence[Group], *rest: Any) -> dict[str, float]:
        rows = [
            row
            for row, rollout in zip(
                rows_with(_whole(groups), [0.0] * sum(len(group.rollouts) for group in groups)),
                [rollout for group in groups for rollout in group.rollouts],
                strict=True,
            )
            if rollout.step is not None
        ]
        reused = [rollout for group in groups for rollout in group.rollouts if rollout.step is not None]
        self._ages = [self.steps - rollout.step for rollout in reused]
        now = token_logprobs(self.policy, rows, self.training.temperature) if rows else []
        self._ratios = [
            np.asarray(own - row.completion.logprobs, np.float64) for own, row in zip(now, rows, strict=True)
        ]
        return self._update(groups, *rest)

    def _log(self, batch: Batch, groups: list[Group]) -> None:
        """Note what was asked for and what became of it. Called at the end of each step."""
        trained = {group.prompt.id for group in groups}
        fresh = sum(rollout.step is None for group in groups for rollout in group.rollouts)
        reused = len(self._ages)
        dropped = sum(
            len(rollouts)
            for prompt, rollouts in zip(batch.prompts, batch.rollouts, strict=True)
            if prompt.id not in trained
        )
        sampled, self._sampled = self.sampler.rollouts - self._sampled, self.sampler.rollouts
        asked = int(batch.asked.sum())
        self.notes.append(
            {
                "asked": asked,
                "groups": len(groups),
                "dropped": dropped,
                "replaced": reused,
                "exact": float(asked == sampled == fresh + reused + dropped),
                "age": float(np.sum(self._ages)),
                "ratio": float(sum(np.exp(own.sum()) for own in self._ratios)),
                "far": sum(abs(own.sum()) > np.log(FAR) for own in self._ratios),
                "tokens": sum(map(len, self._ratios)),
                "outside": float(sum((np.abs(np.exp(own) - 1) > CLIP).sum() for own in self._ratios)),
            }
        )

    def note(self, record: dict[str, Any]) -> bool:
        """Keep the record of a step."""
        self.records.append(record)
        return True


def _whole(groups: Sequence[Group]) -> list[Group]:
    """Return the groups with every rollout in the loss, so that each has a row."""
    return [Group(group.prompt, group.rollouts) for group in groups]


def followed(rule: Settings, seed: int, training: Settings) -> dict[str, Any]:
    """Train one run and return its learning curve, its means over the run, and its course in ``PARTS`` parts."""
    settings = build(Training, {**training, "rollout_log": "none"})
    with tempfile.TemporaryDirectory() as folder:
        trainer = FollowedTrainer(settings, build(Allocator, rule), seed, Path(folder))
        trainer.run(trainer.note)
        run = Run.read(Path(folder))
    records, notes = trainer.records, trainer.notes
    steps = np.array([0] + [record["step"] for record in records if "success" in record])
    counts, p = np.concatenate([r["counts"] for r in records]), np.concatenate([r["p"] for r in records])
    band = np.clip(np.searchsorted(BANDS, p, side="right") - 1, 0, len(BANDS) - 1)
    per_band = np.bincount(band, counts, minlength=len(BANDS)) / np.maximum(np.bincount(band, minlength=len(BANDS)), 1)
    reached = {str(level): run.reached(level) for level in LEVELS}
    asked = sum(note["asked"] for note in notes)
    return {
        "area": run.area,
        "end": float(run.success[-1]),
        "equal_steps": float(np.interp(EQUAL_STEPS, steps, run.success)) if steps[-1] >= EQUAL_STEPS else None,
        "steps": int(steps[-1]),
        "reached": {level: value if np.isfinite(value) else None for level, value in reached.items()},
        "curve": run.success,
        "by_step": np.interp(np.arange(0, EQUAL_STEPS + 1, 10), steps, run.success, right=np.nan),
        "rollouts_per_prompt": asked / int((counts > 0).sum()),
        "per_group_in_loss": asked / sum(note["groups"] for note in notes),
        "without": float(np.mean([record["without_correct"] for record in records])),
        "after": float(np.mean([_after(record) for record in records])),
        "exact": float(np.mean([note["exact"] for note in notes])),
        "thrown_away": sum(note["dropped"] for note in notes) / asked,
        "low_band": float(per_band[0]),
        "high_band": float(per_band[-1]),
        "bands": per_band,
        "course": _course(records, notes, settings),
    }


def _after(record: dict[str, Any]) -> float:
    """Return the share of prompts without a correct response after reuse; without reuse that before it."""
    return record.get("allocator", {}).get("without_correct_after_reuse", record["without_correct"])


def _course(records: list[dict[str, Any]], notes: list[dict[str, float]], settings: Training) -> dict[str, list[Any]]:
    """Return means over the steps of each part, by name. A share over nothing is nan."""
    length, epoch = settings.rollouts or 1, settings.problems / settings.prompts_per_step
    part = np.minimum([(r["rollouts"] - 1) * PARTS // length for r in records], PARTS - 1)
    found: dict[str, list[Any]] = {}

    def put(name: str, values: Sequence[float], over: Sequence[float] | None = None) -> None:
        below = np.ones(len(values)) if over is None else np.asarray(over, np.float64)
        total, size = (np.bincount(part, each, minlength=PARTS) for each in (values, below))
        with np.errstate(invalid="ignore", divide="ignore"):
            found[name] = (total / size).tolist()

    sizes = [np.count_nonzero(record["counts"]) for record in records]
    reused, tokens = [note["replaced"] for note in notes], [note["tokens"] for note in notes]
    put("epoch", [record["step"] / epoch for record in records])
    put("success", [float(np.mean(record["p"])) for record in records])
    put("without", [record["without_correct"] for record in records])
    put("after", [_after(record) for record in records])
    put("none_of_8", [float(np.mean((1 - np.array(record["p"])) ** 8)) for record in records])
    put("informative", [record["informative"] for record in records])
    put("rollouts", [note["asked"] for note in notes], sizes)
    put("hits", reused, [s * r["without_correct"] for s, r in zip(sizes, records, strict=True)])
    put("age_epochs", [note["age"] / epoch for note in notes], reused)
    put("ratio", [note["ratio"] for note in notes], reused)
    put("far", [note["far"] for note in notes], reused)
    put("outside_clip", [note["outside"] for note in notes], tokens)
    put("entries", [record.get("allocator", {}).get("store_entries", 0.0) for record in records])
    put("store_kib", [record.get("allocator", {}).get("store_bytes", 0.0) / 1024 for record in records])
    return found


def learning(rule: Settings, rates: Sequence[float], seeds: Sequence[int] = SEEDS) -> Values:
    """Return what ``followed`` finds over seeds, at the rate with the largest area for a seed not used afterwards."""
    areas = [learn(rule, SWEEP_SEED, {**GRPO, "learning_rate": rate})["area"] for rate in rates] if rates[1:] else [0.0]
    best = rates[int(np.argmax(areas))]
    runs = [followed(rule, seed, {**GRPO, "learning_rate": best}) for seed in seeds]
    return {"rate": best, "sweep": areas, **_over_seeds(runs)}


def _over_seeds(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return single numbers as lists over seeds, and courses and curves as means over seeds, None where unknown."""
    found: dict[str, Any] = {}
    for key, value in runs[0].items():
        if key == "course":
            found[key] = {name: _mean([run[key][name] for run in runs]) for name in value}
        elif key == "reached":
            found[key] = {level: [run[key][level] for run in runs] for level in value}
        elif key in ("curve", "by_step", "bands"):
            shortest = min(len(run[key]) for run in runs)
            found[key] = _mean([run[key][:shortest] for run in runs])
        else:
            found[key] = [run[key] for run in runs]
    return found


def _mean(rows: Sequence[Any]) -> list[float | None]:
    """Return the means of columns, to 4 decimals, over the rows that know them; None where none does."""
    values = np.asarray(rows, np.float64)
    known = np.isfinite(values)
    total = np.where(known, values, 0.0).sum(0)
    return [
        round(float(one / size), 4) if size else None for one, size in zip(total, known.sum(0).tolist(), strict=True)
    ]
