"""Advice of ``apportion diagnose`` on simulated logs: how often is it false, and how often is a real saving found?

python -m benchmarks.advice
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from apportion.diagnosis import advice_of
from apportion.diagnosis.advice import Advice, AdviceList, fewer_rollouts, mixed_columns
from apportion.diagnosis.walks import choose_mixed, walk_batches
from apportion.records import RunRecord, open_run
from apportion.types import Floats
from benchmarks.common import table, write

RUN = Path(__file__).parents[1] / "examples" / "data" / "grpo_run.jsonl.gz"
LOGS, BATCH = 40, 32
CHOOSE, SPLIT, RETIRE = "Choose half", "Split the rollouts", "Retire prompts"

Make = Callable[[np.random.Generator], tuple[Floats, int]]
"""Draws success rates [V, Q], and says the size of a group."""


def alike(rate: float, group: int) -> Make:
    return lambda rng: (np.full((6, 200), rate), group)


def half_dead(visits: int, prompts: int = 200) -> Make:
    return lambda rng: (np.tile(np.where(np.arange(prompts) % 2, 0.5, 0.0), (visits, 1)), 8)


def beta(a: float, prompts: int, visits: int, group: int) -> Make:
    return lambda rng: (np.tile(rng.beta(a, a, prompts), (visits, 1)), group)


def like_the_run(rng: np.random.Generator) -> tuple[Floats, int]:
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


def log_of(make: Make, seed: int, shuffle: bool) -> tuple[RunRecord, Floats]:
    """Return a run in shuffled epochs of batches of 32, and the success rate of each group, [N]."""
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
    ), p


def expected_saving(record: RunRecord, p: Floats) -> float:
    """Return the saving of the same choice at the true rates ``p`` [N]: what the interval should hold."""
    batches = walk_batches(record)
    everything = np.ones(len(p), bool)
    columns = mixed_columns(record, batches, (everything, choose_mixed(record, batches)))
    group = int(record.asked[0])
    weights = columns[:, [1, 3]] / group
    chance = 1 - p**group - (1 - p) ** group
    sums = np.array([weights[:, 0] @ chance, columns[:, 1].sum(), weights[:, 1] @ chance, columns[:, 3].sum()])
    return float(fewer_rollouts(sums))


def of_change(found: AdviceList, change: str) -> Advice | None:
    return next((each for each in (*found.recommended, *found.considered) if each.change.startswith(change)), None)


def row(name: str, make: Make, shuffle: bool = False) -> list[str]:
    """Return a row of the table from ``LOGS`` simulated logs."""
    some, kinds, held, savings, truths = 0, dict.fromkeys((CHOOSE, SPLIT, RETIRE), 0), 0, [], []
    for seed in range(LOGS):
        record, p = log_of(make, seed, shuffle)
        found = advice_of(record)
        some += any(np.isfinite(each.saving.value) for each in found.recommended)  # not the baseline, by the lab
        for change in kinds:
            kinds[change] += any(each.change.startswith(change) for each in found.recommended)
        if (choice := of_change(found, CHOOSE)) is not None:
            truths.append(expected_saving(record, p))
            savings.append(choice.saving.value)
            held += choice.saving.low <= truths[-1] <= choice.saving.high
    told = [f"{np.mean(savings):.1%}", f"{np.mean(truths):.1%}", f"{held} of {len(truths)}"] if truths else ["-"] * 3
    return [name, f"{some} of {LOGS}", *(str(count) for count in kinds.values()), *told]


def shuffled_run(seed: int) -> RunRecord:
    """Return the recorded run with the outcomes of each visit at other prompts."""
    run, rng = open_run(RUN), np.random.default_rng(seed)
    prompt = run.prompt.copy()
    for step in np.unique(run.step):
        own = np.flatnonzero(run.step == step)
        prompt[own] = rng.permutation(prompt[own])
    return replace(run, prompt=prompt)


def main() -> None:
    columns = ["any advice", "choose", "split", "retire", "saving told", "saving at the true p", "interval holds it"]
    nulls = [row(name, make, "shuffled" in name) for name, make in NULLS.items()]
    gains = [row(name, make) for name, make in GAINS.items()]
    real = []
    for name, run in (("the recorded run", open_run(RUN)), ("the same, ids shuffled at each visit", shuffled_run(0))):
        found = advice_of(run)
        cells = []
        for change in (CHOOSE, SPLIT, RETIRE):
            each = of_change(found, change)
            assert each is not None
            mark = "" if each.recommended else ", not recommended"
            cells.append(f"{each.saving.value:.1%} [{each.saving.low:.1%}, {each.saving.high:.1%}]{mark}")
        real.append([name, *cells])
    write(
        "advice",
        "Advice on logs whose truth is known",
        ["nothing can be gained", *columns],
        nulls,
        [
            table(["something can be gained", *columns], gains),
            f"{LOGS} simulated logs a row: shuffled epochs in batches of {BATCH}, 200 prompts, 6 visits and groups of "
            "8 unless named. Counted are logs in which a change was recommended. The intervals are 98.3%, so that "
            "three changes together are right with 95%.",
        ],
        more=[
            "`choose` takes the better half of each batch by P(mixed), `split` gives VIP's counts, `retire` rests "
            "mastered prompts. Saving told: of `choose`, mean over logs. At the true p: the saving of the same choices "
            "in expectation.",
            table(["", "choose", "split", "retire"], real),
            "The recorded run of examples/data, with its 98.3% intervals, and a control: within each visit the "
            "outcomes are at random prompts.",
        ],
        seeds=range(LOGS),
    )


if __name__ == "__main__":
    main()
