"""Advice of ``apportion diagnose`` on simulated logs: how often is it false, and how often is a real saving found?

python -m benchmarks.advice
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable
from pathlib import Path

import numpy as np

from apportion.diagnosis import advice_of
from apportion.records import RunRecord, open_run
from apportion.types import Floats
from benchmarks.common import table, write

RUN = Path(__file__).parents[1] / "examples" / "data" / "grpo_run.jsonl.gz"
LOGS, BATCH = 40, 32

Make = Callable[[np.random.Generator], tuple[Floats, int]]
"""Draws success rates [V, Q], and says the size of a group."""


def alike(rate, group):
    return lambda rng: (np.full((6, 200), rate), group)


def half_dead(visits, prompts=200):
    return lambda rng: (np.tile(np.where(np.arange(prompts) % 2, 0.5, 0.0), (visits, 1)), 8)


def beta(a, prompts, visits, group):
    return lambda rng: (np.tile(rng.beta(a, a, prompts), (visits, 1)), group)


def like_the_run(rng):
    run = open_run(RUN)
    means = np.bincount(run.prompt, run.shares) / np.bincount(run.prompt)
    return np.tile(rng.choice(means, 300), (4, 1)), 8


NULLS: dict[str, Make] = {
    "all p = .5, groups of 2": alike(0.5, 2),
    "all p = .2, groups of 4": alike(0.2, 4),
    "all p rise together from .2 to .95, groups of 4": lambda rng: (
        np.linspace(0.2, 0.95, 6)[:, None] * np.ones(200),
        4,
    ),
    "p drawn anew at each visit from Beta(.5, .5)": lambda rng: (rng.beta(0.5, 0.5, (6, 200)), 8),
    "half of the prompts dead, seen once": half_dead(1),
    "half of the prompts dead, outcomes shuffled": half_dead(6),
}
GAINS: dict[str, Make] = {
    "half of the prompts dead": half_dead(6),
    "Beta(.5, .5), 200 prompts, 6 visits, groups of 8": beta(0.5, 200, 6, 8),
    "Beta(.5, .5), 60 prompts, 4 visits, groups of 4": beta(0.5, 60, 4, 4),
    "Beta(2, 2), 200 prompts, 6 visits, groups of 4": beta(2, 200, 6, 4),
    "rates of the recorded run, 300 prompts, 4 visits": like_the_run,
}


def log_of(make, seed, shuffle):
    """Return a run in shuffled epochs of batches of 32."""
    rng = np.random.default_rng(seed)
    rates, group = make(rng)
    visits, prompts = rates.shape
    prompt = np.concatenate([rng.permutation(prompts) for _ in range(visits)])
    p = rates[np.repeat(np.arange(visits), prompts), prompt]
    if shuffle:
        p = rng.permutation(p)
    size = len(prompt)
    return RunRecord(
        name="simulated",
        source="benchmark",
        ids=[str(q) for q in range(prompts)],
        texts=[None] * prompts,
        step=np.arange(size) // BATCH,
        prompt=prompt,
        first=group * np.arange(size + 1),
        reward=(rng.random((size, group)) < p[:, None]).astype(float).reshape(-1),
    )


def row(name, make, shuffle=False):
    """Return a row of the table from ``LOGS`` simulated logs."""
    found = [advice_of(log_of(make, seed, shuffle)) for seed in range(LOGS)]
    some = sum(any(np.isfinite(each.saving.value) for each in own.recommended) for own in found)  # not the baseline
    return [name, f"{some} of {LOGS}"]


def main():
    nulls = [row(name, make, "shuffled" in name) for name, make in NULLS.items()]
    gains = [row(name, make) for name, make in GAINS.items()]
    write(
        "advice",
        "Advice on logs whose truth is known",
        ["nothing can be gained", "any advice"],
        nulls,
        [
            table(["something can be gained", "any advice"], gains),
            f"{LOGS} simulated logs a row: shuffled epochs in batches of {BATCH}, 200 prompts, 6 visits and groups of "
            "8 unless named. Counted are logs in which a change was recommended. The intervals are 98.3%, so that "
            "three changes together are right with 95%.",
        ],
        seeds=range(LOGS),
    )


if __name__ == "__main__":
    main()
