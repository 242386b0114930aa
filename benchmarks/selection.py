"""Replay rules that choose prompts along a real GRPO run, step by step: what would they have found, and missed?

At each step a rule chooses 128 of all 1,209 prompts. Each of them gets a group of 8 that was recorded at about that
time of the run. The rule learns from these groups alone.

    python -m benchmarks.selection
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from apportion.replay.choosing import choose_along
from apportion.selection import GRESO, Mixed, MoPPS, Retire, ShuffledEpochs, SPOWeights
from benchmarks.common import spread, write
from benchmarks.real_run import BATCH, GROUP
from benchmarks.real_run_data import grpo_run

SEEDS = (0, 1, 2)


RULES = {
    "shuffled epochs": ShuffledEpochs,
    "P(mixed)": Mixed,
    "P(mixed), explores nothing": lambda: Mixed(explore=0.0),
    "SPO's weights": SPOWeights,
    "MoPPS": MoPPS,
    "GRESO": GRESO,
    "retire and retest": Retire,
}
"""The rules to compare, with their default settings unless the name says otherwise."""


def replay(selector, data, seed, outcome):
    """Return what ``selector`` chooses along the run, each step learning from the chosen groups alone."""
    return choose_along(selector, data.record(data.rewards.shape[1]), seed, outcome, BATCH)


def cells(runs):
    """Return a row of the table from one replay for each seed."""
    mixed = spread([run.mixed.mean() for run in runs], ".3f")
    expected = spread([run.expected.mean() for run in runs], ".3f")
    again = spread([1 - len(np.unique(run.shown)) / run.shown.size for run in runs], ".3f")
    waits, never = max(run.longest_wait for run in runs), max(run.never for run in runs)
    half = min(run.half for run in runs)
    return [mixed, expected, again, str(waits), str(never), str(half)]


def main():
    data = grpo_run()
    near = [[name, *cells([replay(make(), data, seed, "near") for seed in SEEDS])] for name, make in RULES.items()]
    write(
        "selection",
        "Choosing prompts along a real GRPO run",
        ["rule", "mixed", "in expectation", "shown before", "longest wait", "never chosen", "hold half"],
        near,
        NOTES,
        seeds=SEEDS,
    )


NOTES = [
    f"Each of 415 steps chooses {BATCH} of 1,209 problems. A chosen problem's outcome is one of its recorded groups of "
    f"{GROUP}: a random one of the ten visits around that step. mixed: share of chosen groups with a right and a wrong "
    "rollout; in expectation: of fresh groups, at the mean rate of the ten visits around; shown before: share of "
    "chosen groups that the rule had got before. Mean and 95% interval (Student's t) over seeds. longest wait: the "
    "most steps between two choices of any problem; never chosen: problems; both are the worst seed's. hold half: the "
    "least number of problems that got half of all groups. A tenth of the places of P(mixed) is for the problems that "
    "were not chosen the longest. No constant was fitted to this run.",
    "The recorded policy was trained by uniform sampling. So this shows which groups a rule would have found at that "
    "policy, not what the policy would have become.",
]


if __name__ == "__main__":
    main()
