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
from itertools import product
from pathlib import Path

import numpy as np

from apportion.predictors import DiscountedCounts, EmpiricalBayes, PrecomputedEmbeddings
from apportion.types import Batch, Belief, Plan, Prompt, Rollout

OLD = "d912fe06"
"""The last commit with the belief of version 0.3.0."""
ROOT = Path(__file__).parents[1]
DATA = Path(__file__).with_name("data") / "grpo_run.npz"
MISSING = 255
SEEDS = (0, 1, 2)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
PROMPTS = (1_000, 100_000, 1_000_000)
LATE, VISITS = 4, 8
EASIER, HARD, GROUP = 64, 120, 16
OUTAGE = 64
RIGHT, WRONG = Rollout(True), Rollout(False)


def expit(latent):
    return 1 / (1 + np.exp(-latent))


def finished(prompts, rollouts):
    counts = [len(each) for each in rollouts]
    return Batch.start(prompts, Belief.uniform(len(prompts))).add(Plan(counts), rollouts)


def verdicts(prompts, right, group):
    return finished(prompts, [[RIGHT] * int(s) + [WRONG] * int(group - s) for s in right])


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


RATES = {
    "two modes, .1 and .9": lambda rng: np.tile(rng.choice([0.1, 0.9], (160, 1)), VISITS),
    "two modes, .02 and .7": lambda rng: np.tile(rng.choice([0.02, 0.7], (160, 1)), VISITS),
    "jump of 2": lambda rng: expit(rng.normal(-1, 1.5, (320, 1)) + 2.0 * (np.arange(VISITS) >= VISITS - 2)),
    "sorted": lambda _: np.linspace(0.05, 0.95, 320)[:, None],
}
"""True rates [Q, V] of populations."""
COLUMNS = {"jump of 2": {"next visit": slice(-1, None)}, "sorted": {"first visit": slice(1)}}
LONG = {"5th visit on": slice(LATE, None), "second visit": slice(1, 2)}
"""The visits whose errors are shown, for rewards with columns of their own and for others."""


def drawn(name, seed, size):
    """Return the right ones of each group [Q, V], the size of a group, and what is to be predicted [Q, V]."""
    rng = np.random.default_rng([7, seed])
    if name in RATES:
        rates = RATES[name](np.random.default_rng([3, seed]))
        return rng.binomial(8, rates), 8, rates
    if name == "recorded run":
        right = np.load(DATA)["correct_of_8"][:: 8 if size < 32 else 1, :VISITS].astype(np.int64)
        return right, 8, right / 8
    rates = np.load(DATA)["stronger_of_128"].astype(np.int64)
    rates = np.sort(rates[(rates != MISSING) & (rates < EASIER)])
    rates = rates[np.linspace(0, len(rates) - 1, HARD).astype(int)]
    right = np.array([rng.multivariate_hypergeometric([GROUP] * VISITS, each) for each in rates])
    return right, GROUP, right / GROUP


def cells(make):
    """Return the squared errors of a belief, one for each of ``SEEDS``, by rewards, visits and prompts a step."""
    found = {}
    for name, size, seed in product(("hard", "recorded run", *RATES), SIZES, SEEDS):
        right, group, truth = drawn(name, seed, size)
        errors = run(make(), right, group, truth, size, seed, ordered=name == "sorted")
        for visits, those in COLUMNS.get(name, LONG).items():
            found.setdefault(f"{name} | {visits} | {size}", []).append(errors[those].mean())
        if size == OUTAGE and name not in RATES:
            for dead, says in enumerate(("wrong", "right")):
                errors = run(make(), right, group, truth, size, seed, dead=dead)
                found.setdefault(f"{name}, three batches all {says}", []).append(errors[LATE:].mean())
    return found


def informed():
    """Return the squared errors at the first visit of the recorded run, with known rates, embeddings and both."""
    file = np.load(DATA)
    right = file["correct_of_8"][:, :1].astype(np.int64)
    rates = [None if each == MISSING else each / 128 for each in file["stronger_of_128"].tolist()]
    prompts = [Prompt(str(q), rate=rate) for q, rate in enumerate(rates)]
    embedder = PrecomputedEmbeddings.from_array(prompts, file["embeddings"].astype(np.float32))
    plain = [Prompt(str(q)) for q in range(len(rates))]
    kinds = {"known rates": (None, prompts), "embeddings": (embedder, plain), "both": (embedder, prompts)}
    return {
        f"recorded run, {name}, first visit": [
            run(EmpiricalBayes(own), right, 8, right / 8, 128, seed, prompts=some)[0] for seed in SEEDS
        ]
        for name, (own, some) in kinds.items()
    }


def rewards():
    """Return the errors of expected rewards, and of the logarithm of the variance, for graded rewards of 320 prompts.

    Half of the prompts have a standard deviation of .05 and half one of .3, in units of the range of their means.
    """
    found, prompts = np.zeros((2, 4, len(SEEDS))), [Prompt(str(q)) for q in range(320)]
    for seed in SEEDS:
        rng, predictor = np.random.default_rng([11, seed]), EmpiricalBayes()
        level, spread = rng.random(320), rng.choice([0.05, 0.3], 320)
        for visit in range(4):
            for some in np.split(rng.permutation(320), 10):
                here = [prompts[q] for q in some]
                belief, expected = predictor.predict(here), (predictor.expected_rewards(here) + 7) / 40
                apart = np.log(belief.variance) - 2 * np.log(40 * spread[some])
                found[:, visit, seed] += [((expected - level[some]) ** 2).mean(), np.abs(apart).mean()]
                sampled = level[some, None] + spread[some, None] * rng.normal(size=(len(some), 8))
                predictor.update(
                    finished(here, [[Rollout(reward=each) for each in own] for own in (40 * sampled - 7).tolist()])
                )
    return {
        f"graded rewards, {name}, visit {visit + 1}": (found[row, visit] / 10).tolist()
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
    times = {f"milliseconds of an update, {count:,} prompts seen": [milliseconds(count)] for count in PROMPTS}
    return cells(EmpiricalBayes) | informed() | rewards() | times


def elsewhere(kind, tree):
    """Return ``measured`` by the code in the folder ``tree``, in a process of its own."""
    command = [sys.executable, __file__, kind]
    settings = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=True, encoding="utf-8", cwd=tree)
    return json.loads(done.stdout)


def main():
    from benchmarks.common import spread, table, write  # noqa: PLC0415 - the old code does not have all that it imports

    archive = subprocess.run(["git", "archive", OLD, "apportion"], cwd=ROOT, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        with ThreadPoolExecutor() as pool:
            old, new, counts = pool.map(elsewhere, ("belief", "belief", "counts"), (folder, ROOT, ROOT))

    def ratio(below, name):
        return spread(np.divide(new[name], below[name]), ".2f").replace(" ± ", "±")

    kinds = dict.fromkeys(name.rpartition(" | ")[0] for name in counts if " | " in name)
    over_counts, over_old = (
        [[*kind.split(" | "), *(ratio(each, f"{kind} | {size}") for size in SIZES)] for kind in kinds]
        for each in (counts, old)
    )
    others = [
        [name, *(spread(np.divide(each[name], counts.get(name, 1)), ".3g") for each in (old, new)), ratio(old, name)]
        for name in new
        if " | " not in name
    ]
    columns = ["rewards", "visits", *map(str, SIZES)]
    write(
        "belief",
        "The default belief",
        columns,
        over_counts,
        [
            NOTES[0],
            table(columns, over_old),
            NOTES[1],
            table(["others", "0.3.0", "now", "now / 0.3.0"], others),
            NOTES[2],
        ],
        seeds=SEEDS,
        cells={"old": old, "new": new, "counts": counts},
    )


NOTES = [
    "Squared error of the predicted success over that of `counts`, by the number of prompts a step: mean and 95% "
    "interval of three seeds, which draw synthetic rewards, split samples and order prompts. Recorded rewards are "
    "predicted as shares of a group, whose binomial noise is in it; synthetic ones as true rates. Hard: "
    f"{HARD} problems that Qwen2.5-Math-7B mostly fails, its 128 samples as {VISITS} visits of {GROUP}. Recorded run: "
    "the GRPO run of [real_run](real_run.md), every eighth problem below 32 a step. Jump: of all log-odds. Sorted: by "
    "difficulty.",
    "The same over that of the belief of version 0.3.0.",
    f"Three batches: in the fifth visit, at {OUTAGE} a step, a verifier gives three batches in a row the same "
    "verdicts; from this visit on, over the error of `counts`. Then squared errors at the first visit with what is "
    "known of prompts, 128 a step; errors for graded rewards from -7 to 33, the mean in units of the range; processor "
    "time.",
]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        json.dump(measured(sys.argv[1]), sys.stdout)
    else:
        main()
