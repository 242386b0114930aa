"""Runs of AR3PO and its controls in the lab, with what each step asked for, trained on, reused and threw away."""

from __future__ import annotations

import numpy as np

from apportion.lab.training.metrics import read_metrics
from apportion.lab.training.trainer import Trainer
from benchmarks.evidence.learning import HARD, learn, swept

GRPO = {**HARD, "estimator": "grpo"}
"""The shared lab setting with the paper's estimator."""
SWEEP_SEED = 100
EQUAL_STEPS = 100
"""Steps that uniform groups of 8 take with the rollouts of a run."""
AT = tuple(range(0, HARD["rollouts"] + 1, HARD["evaluate_every"]))
"""The rollouts at which the curves of all seeds are read."""
BANDS = (0.0, 0.2, 0.4, 0.6, 0.8)
"""Lower edges of the bands of exact success that rollouts are averaged in: the bands of the paper's Figure 2d."""


class FollowedTrainer(Trainer):
    """A trainer that notes the accounting of every step."""

    def __init__(self, *settings):
        super().__init__(*settings)
        self.notes: list[dict[str, float]] = []
        self._sampled = 0

    def _log(self, batch, groups):
        """Note what was asked for and what became of it. Called at the end of each step."""
        trained = {group.prompt.id for group in groups}
        rollouts = sum(len(group.rollouts) for group in groups)  # fresh ones and reused ones
        dropped = sum(
            len(own) for prompt, own in zip(batch.prompts, batch.rollouts, strict=True) if prompt.id not in trained
        )
        sampled, self._sampled = self.sampler.rollouts - self._sampled, self.sampler.rollouts
        asked = int(batch.asked.sum())
        exact = asked == sampled == rollouts + dropped
        self.notes.append({"asked": asked, "groups": len(groups), "dropped": dropped, "exact": exact})


def accounted(trainer, run):
    """Return what became of the rollouts of a run, and its success after ``EQUAL_STEPS`` steps."""
    notes = {key: np.array([note[key] for note in trainer.notes]) for key in trainer.notes[0]}
    steps, counts = run.evaluations["step"], run.steps["counts"]
    band = np.clip(np.searchsorted(BANDS, run.steps["p"], side="right") - 1, 0, len(BANDS) - 1)
    in_band, asked, reached = np.bincount(band, minlength=len(BANDS)), notes["asked"].sum(), run.reached(0.8)
    after = [
        record.get("allocator", {}).get("without_correct_after_reuse", record["without_correct"])
        for record in read_metrics(trainer.metrics)
        if "counts" in record
    ]
    return {
        # A step of DAPO ends where its prompts let it, so the evaluations of two seeds differ.
        "curve": np.interp(AT, run.rollouts, run.success).round(4).tolist(),
        "equal_steps": float(np.interp(EQUAL_STEPS, steps, run.success)) if steps[-1] >= EQUAL_STEPS else None,
        "steps": int(steps[-1]),
        "reached": reached if np.isfinite(reached) else None,
        "rollouts_per_prompt": run.rollouts_per_prompt,
        "per_group_in_loss": float(asked / notes["groups"].sum()),
        "without": float(run.steps["without_correct"].mean()),
        "after": float(np.mean(after)),
        "exact": float(notes["exact"].mean()),
        "thrown_away": float(notes["dropped"].sum() / asked),
        "bands": np.bincount(band, counts, minlength=len(BANDS)) / np.maximum(in_band, 1),
    }


def followed(rule, seed, training):
    """Train one run and return what it learns and how its rollouts were spent."""
    return learn(rule, seed, training, accounted, FollowedTrainer)


def learning(rule, rates):
    """Return what ``followed`` finds over seeds, at the rate with the largest area for a seed not used afterwards."""
    found = swept(rule, GRPO, rates, (SWEEP_SEED,), measure=accounted, kind=FollowedTrainer)
    return {**found, "bands": np.mean(found["bands"], axis=0).round(4).tolist(), "reached": {"0.8": found["reached"]}}
