"""What bad batches and a jump of the policy do to the default belief, against discounted counts.

python -m benchmarks.bad_batches
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from apportion import Prompt
from apportion.predictors import DiscountedCounts, EmpiricalBayes, Predictor
from apportion.predictors.statistics.beta_binomial import expit
from apportion.predictors.statistics.drift import Drift, Returns
from apportion.types import Batch, Counts, Floats, Plan, Rollout
from benchmarks.common import table, write
from benchmarks.real_run_data import DATA, grpo_run

SEEDS = (0, 1)
SIZES = (1, 2, 8, 128)
GROUP, VISITS, BAD_VISIT, BAD_BATCHES, JUMP = 8, 10, 4, 3, 2.0
FAULTS = ("none", "all 0", "all 1", "half None", "half 0")
PROMPTS = [Prompt(str(q)) for q in range(2000)]

Visit = tuple[int, Counts, list[list[Rollout]]]


class Still(Drift):
    """No drift and no outages."""

    def observe(self, seen: Returns, dead: int = 0) -> tuple[float, bool]:
        return 0.0, True


@dataclass
class WithoutDrift(EmpiricalBayes):
    """Empirical Bayes whose beliefs never move together: the control."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._drift = Still()


def pools() -> dict[str, Counts]:
    """Return right rollouts of 8 at ten visits, [Q, V]: 200 problems of the 1.5B run, and 120 hard ones of the 7B."""
    right = np.load(DATA / "deepscaler_rates.npz")["correct_of_128"].astype(int)
    hard = right[right <= 16][:120]
    drawn = np.random.default_rng(0).permuted(np.arange(128) < hard[:, None], axis=1)[:, : GROUP * VISITS]
    return {
        "1.5B run": grpo_run().rewards.sum(axis=2)[:200, :VISITS].astype(int),
        "7B, hard": drawn.reshape(len(hard), VISITS, GROUP).sum(axis=2),
    }


def visits(right: Counts, size: int, seed: int, fault: str = "none") -> Iterator[Visit]:
    """Yield batches of ``size``: visit, prompts [P] and their groups. Three batches of visit 4 have the fault."""
    rng = np.random.default_rng(seed)
    for visit in range(right.shape[1]):
        places = rng.permutation(len(right))
        for first in range(0, len(places), size):
            some = places[first : first + size]
            bad = visit == BAD_VISIT and first < BAD_BATCHES * size
            yield visit, some, [_group(int(k), fault if bad else "none", rng) for k in right[some, visit]]


def _group(right: int, fault: str, rng: np.random.Generator) -> list[Rollout]:
    verdicts: list[bool | None] = [place < right for place in range(GROUP)]
    rng.shuffle(verdicts)
    if fault in ("all 0", "all 1"):
        verdicts = [fault == "all 1"] * GROUP
    elif fault != "none":
        verdicts[GROUP // 2 :] = [None if fault == "half None" else False] * (GROUP // 2)
    return [Rollout(verdict) for verdict in verdicts]


def errors(predictor: Predictor, stream: Iterator[Visit], truth: Floats) -> Floats:
    """Return the squared error of each prediction against ``truth`` [Q, V]."""
    found = np.full(truth.shape, np.nan)
    for visit, some, rollouts in stream:
        prompts = [PROMPTS[q] for q in some]
        belief = predictor.predict(prompts)
        found[some, visit] = (belief.mean - truth[some, visit]) ** 2
        predictor.update(Batch.start(prompts, belief).add(Plan([GROUP] * len(some)), rollouts))
    return found


def jumped(seed: int) -> tuple[Counts, Floats]:
    """Return counts and rates [120, 8] of prompts whose log-odds all rise by 2 between visits 3 and 4."""
    rng = np.random.default_rng(seed)
    p = expit(rng.normal(0, 1.5, 120)[:, None] + JUMP * (np.arange(8) >= BAD_VISIT))
    return rng.binomial(GROUP, p), p


def means(right: Counts, truth: Floats, size: int, fault: str = "none") -> Mapping[str, Floats]:
    """Return the mean squared error of each visit, [V], of each predictor over the seeds."""
    made = {"counts": DiscountedCounts, "default": EmpiricalBayes, "without drift": WithoutDrift}
    return {
        name: np.mean([errors(make(), visits(right, size, s, fault), truth).mean(0) for s in SEEDS], axis=0)
        for name, make in made.items()
    }


def main() -> None:
    rows, jumps = [], []
    for size in SIZES:
        for name, right in pools().items():
            found = {fault: means(right, right / GROUP, size, fault=fault) for fault in FAULTS}
            rows.append([f"{name}, {size} a batch", *(_ratios(found[fault]) for fault in FAULTS)])
        steps = [means(*jumped(seed), size) for seed in SEEDS]
        before = {name: np.mean([each[name] for each in steps], axis=0) for name in steps[0]}
        for name in ("default", "without drift"):
            ratios = before[name] / before["counts"]
            jumps.append([f"{name}, {size} a batch", *(f"{ratio:.2f}" for ratio in ratios[BAD_VISIT - 1 :])])
    write(
        "bad_batches",
        "Bad batches and jumps: the default belief against counts",
        ["run", *FAULTS],
        rows,
        [
            NOTES[0],
            table(["predictor", *(f"visit {visit}" for visit in range(BAD_VISIT - 1, 8))], jumps),
            NOTES[1],
        ],
        seeds=SEEDS,
    )


def _ratios(found: Mapping[str, Floats]) -> str:
    shown = [found[name].mean() / found["counts"].mean() for name in ("default", "without drift")]
    late = [found[name][1:].mean() / found["counts"][1:].mean() for name in ("default", "without drift")]
    return f"{shown[0]:.2f}, {late[0]:.2f} ({shown[1]:.2f}, {late[1]:.2f})"


NOTES = [
    "Squared error of the predicted share of right answers in the next group of 8, over that of discounted counts: "
    "over all ten visits, then without each prompt's first. In brackets: without drift and without outages. At visit 4 "
    "three batches have the fault. 200 problems of the GRPO run of Qwen2.5-Math-1.5B; 120 "
    "problems of which Qwen2.5-Math-7B solves at most 16 of 128.",
    "120 simulated prompts whose log-odds all rise by 2 before visit 4: squared error against the true rates over "
    "that of counts, at the visits from 3 on. At visit 4 of 128 a batch nothing has shown the jump yet.",
]


if __name__ == "__main__":
    main()
