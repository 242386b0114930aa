"""Compare the default belief with that of version 0.3.0: the squared error of its predictions over that of counts.

The old code is taken from git and runs in a process of its own, on the same rewards. Recorded rewards are of two runs,
synthetic ones of populations that were fixed before. The constants of the belief were taken from version 0.3.0 or set
on synthetic populations, and none was fitted to a recorded run.

    python -m benchmarks.belief
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import io
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from apportion.predictors import DiscountedCounts, EmpiricalBayes, PrecomputedEmbeddings
from apportion.types import Batch, Belief, Plan, Prompt, Rollout

OLD = "d912fe06"
"""The last commit with the belief of version 0.3.0."""
ROOT = Path(__file__).parents[1]
DATA = Path(__file__).with_name("data") / "grpo_run.npz"
MISSING = 255
SEEDS = (0,)
SIZES = (4, 64)
LATE, VISITS = 4, 8
EASIER, HARD, GROUP = 64, 120, 16
RIGHT, WRONG = Rollout(True), Rollout(False)


def expit(latent):
    return 1 / (1 + np.exp(-latent))


def verdicts(prompts, right, group):
    rollouts = [[RIGHT] * int(s) + [WRONG] * int(group - s) for s in right]
    return Batch.start(prompts, Belief.uniform(len(prompts))).add(Plan([group] * len(prompts)), rollouts)


def graded(prompts, rewards):
    rollouts = [[Rollout(reward=float(each)) for each in own] for own in rewards]
    return Batch.start(prompts, Belief.uniform(len(prompts))).add(Plan([rewards.shape[1]] * len(prompts)), rollouts)


def run(predictor, right, group, truth, size, seed, *, dead=None, prompts=None, ordered=False):
    """Return the squared errors [V] of each visit, for ``right`` [Q, V] of ``group`` rollouts and their ``truth``.

    With ``dead``, all or no rewards of three batches in a row are right, from the second of visit ``LATE`` on.
    """
    rng, found, prompts = np.random.default_rng(seed), [], prompts or [Prompt(str(q)) for q in range(len(right))]
    predictor.prepare(prompts)
    batches, out = 0, LATE * -(-len(right) // size) + np.arange(1, 4)
    for visit in range(right.shape[1]):
        order, squares = np.arange(len(right)) if ordered else rng.permutation(len(right)), []
        for first in range(0, len(right), size):
            some = order[first : first + size]
            here, seen = [prompts[q] for q in some], right[some, visit]
            squares.extend((predictor.predict(here).mean - truth[some, visit]) ** 2)
            if dead is not None and batches in out:
                seen = np.full(len(some), group * dead)
            predictor.update(verdicts(here, seen, group))
            batches += 1
        found.append(float(np.mean(squares)))
    return np.array(found)


def mean(call):
    return np.mean([call(seed) for seed in SEEDS], axis=0)


def recorded(every=1):
    """Return the right ones of 8 rollouts of the recorded run, [Q, V]."""
    return np.load(DATA)["correct_of_8"][::every, :VISITS].astype(np.int64)


def hard():
    """Return the right ones of 16 rollouts, [120, V]: problems that a 7B model mostly fails, its 128 samples split."""
    rates = np.load(DATA)["stronger_of_128"].astype(np.int64)
    rates = np.sort(rates[(rates != MISSING) & (rates < EASIER)])
    rates = rates[np.linspace(0, len(rates) - 1, HARD).astype(int)]
    rng = np.random.default_rng(0)
    return np.array([rng.multivariate_hypergeometric([GROUP] * VISITS, each) for each in rates])


POPULATIONS = {
    "two modes, .1 and .9": lambda rng: rng.choice([0.1, 0.9], 320),
    "two modes, .02 and .7": lambda rng: rng.choice([0.02, 0.7], 320),
}


def synthetic(make, seed, size, rates, ordered=False):
    """Return the errors by visit on binomial rewards of ``rates`` [Q, V]."""
    right = np.random.default_rng([7, seed]).binomial(8, rates)
    return run(make(), right, 8, rates, size, seed, ordered=ordered)


def course(name, seed):
    return np.repeat(POPULATIONS[name](np.random.default_rng([3, seed]))[:, None], VISITS, axis=1)


def jumped(seed, jump):
    latent = np.random.default_rng([9, seed]).normal(-jump / 2, 1.5, 640)
    return expit(latent[:, None] + jump * (np.arange(VISITS) >= VISITS - 2))


def both(name, errors):
    return {f"{name} | 5th visit on": errors[LATE:].mean(), f"{name} | second visit": errors[1]}


def cells(make):
    """Return the squared errors of a belief, by the name of the cell."""
    found = {}
    for name, right, group in (("hard", hard(), GROUP), ("recorded run", None, 8)):
        for size in SIZES:
            some = recorded(8 if size < 8 else 1) if right is None else right
            errors = mean(
                lambda seed, size=size, some=some, group=group: run(make(), some, group, some / group, size, seed)
            )
            found |= both(f"{name}, {size} a step", errors)
        some = recorded() if right is None else right
        for verdict, says in ((1, "right"), (0, "wrong")):
            errors = mean(
                lambda seed, verdict=verdict, some=some, group=group: run(
                    make(), some, group, some / group, 64, seed, dead=verdict
                )
            )
            found[f"{name}, 64, three batches all {says} | 5th visit on"] = errors[LATE:].mean()
    for name in POPULATIONS:
        for size in (8,):
            errors = mean(lambda seed, size=size, name=name: synthetic(make, seed, size, course(name, seed)))
            found |= both(f"{name}, {size} a step", errors)
    for size in (32,):
        errors = mean(lambda seed, size=size: synthetic(make, seed, size, jumped(seed, 2.0)))
        found[f"jump of 2 in all log-odds, {size} a step | next visit"] = errors[-1]
    for size in (32,):
        rates = np.repeat(np.linspace(0.05, 0.95, 320)[:, None], VISITS, axis=1)
        errors = mean(lambda seed, size=size, rates=rates: synthetic(make, seed, size, rates, ordered=True))
        found[f"sorted by difficulty, {size} a step | first visit"] = errors[0]
    return found


def informed():
    """Return the squared errors at the first visit of the recorded run, with known rates, embeddings and both."""
    file, right = np.load(DATA), recorded()[:, :1]
    rates = [None if each == MISSING else each / 128 for each in file["stronger_of_128"].tolist()]
    prompts = [Prompt(str(q), rate=rate) for q, rate in enumerate(rates)]
    embedder = PrecomputedEmbeddings.from_array(prompts, file["embeddings"].astype(np.float32))
    plain = [Prompt(str(q)) for q in range(len(rates))]
    kinds = {"known rates": (None, prompts), "embeddings": (embedder, plain), "both": (embedder, prompts)}
    return {
        f"recorded run, {name}, 128 a step | first visit": mean(
            lambda seed, own=own, some=some: run(EmpiricalBayes(own), right, 8, right / 8, 128, seed, prompts=some)
        )[0]
        for name, (own, some) in kinds.items()
    }


def rewards():
    """Return the errors of expected rewards, and of the logarithm of the variance, for graded rewards of 320 prompts.

    Half of the prompts have a standard deviation of .05 and half one of .3, in units of the range of their means.
    """
    found = np.zeros((2, 4))
    for seed in SEEDS:
        rng, prompts, predictor = (
            np.random.default_rng([11, seed]),
            [Prompt(str(q)) for q in range(320)],
            EmpiricalBayes(),
        )
        level, spread = rng.random(320), rng.choice([0.05, 0.3], 320)
        for visit in range(4):
            for some in np.split(rng.permutation(320), 10):
                here = [prompts[q] for q in some]
                belief, expected = predictor.predict(here), (predictor.expected_rewards(here) + 7) / 40
                apart = np.log(belief.variance) - 2 * np.log(40 * spread[some])
                found[:, visit] += [((expected - level[some]) ** 2).mean(), np.abs(apart).mean()]
                drawn = level[some, None] + spread[some, None] * rng.normal(size=(len(some), 8))
                predictor.update(graded(here, 40 * drawn - 7))
    found /= 10 * len(SEEDS)
    return {
        f"graded rewards, {name} | visit {visit + 1}": found[row, visit]
        for row, name in enumerate(("squared error of the mean", "error of log variance"))
        for visit in (1, 3)
    }


def milliseconds(count):
    """Return the least milliseconds of an update of 128, once ``count`` prompts have been seen."""
    rng, predictor, prompts = np.random.default_rng(0), EmpiricalBayes(), [Prompt(str(q)) for q in range(count)]
    for first in range(0, count, 10_000):
        here = prompts[first : first + 10_000]
        predictor.update(verdicts(here, rng.binomial(8, 0.4, len(here)), 8))
    taken = []
    for _ in range(7):
        some = rng.choice(count, 128, replace=False)
        batch = verdicts([prompts[q] for q in some], rng.binomial(8, 0.4, 128), 8)
        started = time.process_time()
        predictor.update(batch)
        taken.append(1000 * (time.process_time() - started))
    return min(taken)


def measured(kind):
    """Return all numbers of one belief, by their names, with the code that is on the path."""
    if kind == "counts":
        return cells(DiscountedCounts)
    others = {f"milliseconds of an update, {count:,} prompts seen": milliseconds(count) for count in (1_000, 10_000)}
    return cells(EmpiricalBayes) | informed() | rewards() | others


def elsewhere(kind, tree):
    """Return ``measured`` by the code in the folder ``tree``, in a process of its own."""
    command = [sys.executable, __file__, kind]
    settings = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=True, encoding="utf-8", cwd=tree)
    return json.loads(done.stdout)


def main():
    from benchmarks.common import table, write  # noqa: PLC0415 - the old code does not have all that it imports

    archive = subprocess.run(["git", "archive", OLD, "apportion"], cwd=ROOT, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        with ThreadPoolExecutor() as pool:
            old, new, counts = pool.map(elsewhere, ("belief", "belief", "counts"), (folder, ROOT, ROOT))
    rows = [
        [
            *name.split(" | "),
            *(f"{each[name] / counts[name]:.2f}" for each in (old, new)),
            f"{new[name] / old[name]:.2f}",
        ]
        for name in counts
    ]
    others = [
        [name.replace(" | ", ", "), *(f"{each[name]:.4g}" for each in (old, new)), f"{new[name] / old[name]:.2f}"]
        for name in old
        if name not in counts
    ]
    write(
        "belief",
        "The default belief, old and new",
        ["rewards", "visits", "0.3.0", "now", "now / 0.3.0"],
        rows,
        [NOTES[0], table(["other numbers", "0.3.0", "now", "now / 0.3.0"], others), NOTES[1]],
        seeds=SEEDS,
        cells={"old": old, "new": new, "counts": counts},
    )


NOTES = [
    "Mean squared error of the predicted success over that of `counts`, in one order of the prompts. Recorded "
    "rewards are predicted as shares of a group, whose binomial noise is in it; synthetic ones as true rates. Hard: "
    f"{HARD} problems that Qwen2.5-Math-7B mostly fails, its 128 samples as {VISITS} visits of {GROUP}. Recorded run: "
    "the GRPO run of [real_run](real_run.md), every eighth problem below 8 a step. Three batches: in the fifth visit a "
    "verifier is out, and gives three batches in a row the same verdicts.",
    "Squared error at the first visit with what is known of prompts; errors for graded rewards from -7 to 33, the mean "
    "in units of the range; and processor time.",
]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        json.dump(measured(sys.argv[1]), sys.stdout)
    else:
        main()
