"""Signs of sickness on runs whose truth is known, and on the real runs at hand: false alarms, misses, and the onset.

    python -m benchmarks.health

Simulated runs have 80 steps of 10 groups of 8. Real runs are those of examples/data, and of a folder beside the
checkout if it is there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from apportion.diagnosis.health import health_of
from apportion.records import RunRecord, open_run, scalars_at
from apportion.types import Floats
from benchmarks.common import ROOT, table, write

STEPS, PROMPTS, GROUP, SEEDS = 80, 10, 8, 40
FRESH = range(1000, 1000 + SEEDS)
REAL = ROOT.parent / "shared" / "data" / "health"

Draw = Callable[[Floats, np.random.Generator], tuple[Floats, Floats | None]]
"""Draws rewards and lengths from the step of each rollout [R]."""


def made(rate, mean=None, most=1000):
    """Return what draws verdicts at a success rate, and lengths around a mean, cut at ``most``."""

    def draw(step, rng):
        rewards = (rng.random(len(step)) < rate(step)).astype(np.float64)
        return rewards, None if mean is None else np.minimum(most, rng.gamma(4, mean(step) / 4) + 1).round()

    return draw


def paid_for_length(step, rng):
    lengths = np.minimum(5000, rng.gamma(4, (100 + np.maximum(0, 8 * (step - 20))) / 4) + 1).round()
    return lengths / 2000 + 0.1 * (rng.random(len(step)) < 0.3), lengths


def learning(step):
    return 0.3 + 0.5 * step / STEPS


def short(step, rng):
    return (rng.random(len(step)) < learning(step)).astype(np.float64), 2.0 + (rng.random(len(step)) < 0.6)


HEALTHY: dict[str, Draw] = {
    "learns": made(learning, lambda step: 200 + 0 * step),
    "saturates at .95": made(lambda step: np.minimum(0.95, 0.5 + step / 60), lambda step: 200 + 0 * step),
    "three times as long, and better": made(learning, lambda step: 150 + 4 * step, 4000),
    "answers of two or three tokens": short,
    "a quarter cut throughout": made(learning, lambda step: 780 + 0 * step),
    "hard: a rate of .03": made(lambda step: 0.03 + 0 * step, lambda step: 200 + 0 * step),
    "dips for six steps": made(lambda step: np.where((step > 30) & (step < 37), 0.0, 0.6)),
    "falls slowly by a fifth": made(lambda step: 0.8 - 0.15 * step / STEPS),
}
SICK: dict[str, tuple[str, int, Draw]] = {
    "cut from step 40 on": ("truncation", 40, made(learning, lambda step: np.where(step < 40, 200, 3000))),
    "cut throughout": ("truncation", 0, made(learning, lambda step: 4000 + 0 * step)),
    "length is paid for from step 20 on": ("length", 27, paid_for_length),
    "collapses in step 2": ("collapse", 2, made(lambda step: np.where(step < 2, 0.6, 0.01))),
    "collapses in step 40": ("collapse", 40, made(lambda step: np.where(step < 40, 0.6, 0.01))),
    "falls slowly by half": ("decline", 0, made(lambda step: 0.8 - 0.4 * step / STEPS)),
    "nothing is right": ("all wrong", 0, made(lambda step: 0 * step)),
    "all are right from step 30 on": ("all right", 30, made(lambda step: np.minimum(1, 0.5 + step / 60))),
    "loses three quarters in step 60": ("collapse", 60, made(lambda step: np.where(step < 60, 0.8, 0.2))),
}


def run_of(draw, seed):
    rng = np.random.default_rng(seed)
    step = np.repeat(np.arange(STEPS), PROMPTS)
    rewards, lengths = draw(np.repeat(step, GROUP).astype(np.float64), rng)
    return RunRecord(
        name="simulated",
        source="simulated",
        ids=[str(q) for q in range(PROMPTS)],
        texts=[None] * PROMPTS,
        step=step,
        prompt=np.tile(np.arange(PROMPTS), STEPS),
        first=GROUP * np.arange(len(step) + 1),
        reward=rewards,
        tokens=lengths,
    )


def real_rows():
    """Return the signs of each real run, from its rollouts or from what its framework logged."""
    found: list[tuple[str, str]] = []
    for path in [ROOT / "examples" / "data" / "grpo_run.jsonl.gz", *sorted(REAL.glob("*.parquet"))]:
        found.append((f"{path.name}, rollouts", _said(health_of(open_run(path)).signs)))
    for path in sorted(REAL.glob("*.json")):
        found.append((f"{path.name}, means of steps", _said(health_of(None, scalars_at(path)).signs)))
    return found


def _said(signs):
    return ", ".join(f"{sign.kind} from {sign.onset}" for sign in signs) or "none"


def main():
    rows = []
    for name, draw in HEALTHY.items():
        alarms = sum(bool(health_of(run_of(draw, seed)).signs) for seed in FRESH)
        rows.append((name, "healthy", f"{alarms} of {SEEDS}", "-"))
    for name, (kind, onset, draw) in SICK.items():
        signs = [sign for seed in FRESH for sign in health_of(run_of(draw, seed)).signs if sign.kind == kind]
        late = [sign.onset - onset for sign in signs]
        far = f"{np.median(late):+.0f} ({min(late):+d} to {max(late):+d})" if late else "-"
        rows.append((name, kind, f"{len(late)} of {SEEDS}", far))
    header = ("simulated run", "truth", "with that sign, or with any", "onset, steps late")
    notes = [
        f"{SEEDS} simulated runs a row. A healthy row counts runs with any sign, which are false alarms. The "
        "thresholds are from three real runs, which are below. The test of a fall was changed after other seeds of "
        "these runs had 15 false alarms of 160 with one and two prompts a step.",
        table(("real run", "signs"), real_rows()),
    ]
    write("health", "Is the run sick?", header, rows, notes, seeds=FRESH)


if __name__ == "__main__":
    main()
