"""Which baseline leaves a language model's policy gradient the smallest second moment, out of sample?

Right and wrong completions have score norms |g|^2 of very different size, so the best baseline is not the success rate.
It needs |g|^2, which costs a backward pass a completion. Here its stand-ins are compared, above all the sum over tokens
of (1 - pi)^2, which needs only the log-probabilities that every engine returns. The norms are recorded.

    python -m benchmarks.baselines            # the tables, from recorded norms, in a minute
    python -m benchmarks.baselines --measure  # measures the norms again; see baselines_measured.py
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.baselines_rules import RLOO, SHIPPED, WEIGHTS, Samples, moments, ratio
from benchmarks.common import spread, table, write

DATA = Path(__file__).parent / "data"
MODEL_SCORES, LAB_SCORES = DATA / "smollm2_scores.npz", DATA / "lab_scores.npz"
SEED, SPLITS, RESAMPLES = 0, 200, 1000
BINS = ((0.0, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 1.0))
"""Bands of success rates, by which ``evidence`` tells norms."""


def recorded():
    """Return the recorded samples of the language model, by task."""
    file = np.load(MODEL_SCORES)
    return {str(task): samples(file, (t,)) for t, task in enumerate(file["tasks"])}


def recorded_lab():
    """Return the recorded samples of the lab's policies, one for each seed, by base and rollouts trained on."""
    file = np.load(LAB_SCORES)
    return {
        f"{base}, {rollouts:,}": [samples(file, (b, point, s)) for s in range(len(file["seeds"]))]
        for b, base in enumerate(file["bases"])
        for point, rollouts in enumerate(file["points"].tolist())
    }


def samples(file, at):
    """Return the samples at a place of the recorded arrays."""
    rewards = file["right"][at].astype(float)
    measures = {name: file[name][at].astype(float) for name in WEIGHTS if name != "equal"}
    return Samples(rewards, measures | {"equal": np.ones_like(rewards)})


def quantiles(values, low, high, middle=None):
    """Return the median, or ``middle``, and two quantiles."""
    shown = np.median(values) if middle is None else middle
    return f"{shown:.2f} ({np.quantile(values, low):.2f} to {np.quantile(values, high):.2f})"


def named(family, weight):
    """Return the first two cells of a row."""
    return [family, WEIGHTS.get(weight, weight)]


def gains(data):
    """Yield a row for each rule: its second moment over RLOO's, for each task."""
    found = [moments(each, SPLITS, seed=SEED, more=SHIPPED) for each in data.values()]
    for name in found[0]:
        if name != RLOO:
            yield [*named(*name), *(quantiles(ratio(task[name], task[RLOO]), 0.05, 0.95) for task in found)]


def stand_in(data):
    """Return the row of the stand-in: the second moment by it over that by parameter norms, for each task."""
    cells = []
    for each in data.values():
        fixed, drawn = (
            ratio(found["constant", "squared"], found["constant", "parameters"])
            for found in (moments(each, SPLITS, seed=SEED), moments(each, RESAMPLES, resample=True, seed=SEED))
        )
        cells.append(quantiles(drawn, 0.025, 0.975, middle=float(np.median(fixed))))
    return [*named("constant / by norms", "squared"), *cells]


def lab_rows(data):
    """Yield rows over RLOO's second moment, then over that by parameter norms: medians over splits, by seed."""
    found = [[moments(each, SPLITS, seed=SEED) for each in seeds] for seeds in data.values()]

    def cells(name, base):
        return [spread([float(np.median(ratio(run[name], run[base]))) for run in runs], ".2f") for runs in found]

    for family, weight in (("b = 0", "-"), *product(("constant", "others of the group"), ("parameters", "squared"))):
        yield [*named(f"lab: {family}", weight), *cells((family, weight), RLOO)]
    yield [*named("lab: constant / by norms", "squared"), *cells(("constant", "squared"), ("constant", "parameters"))]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="measure the norms again, in about 20 minutes")
    if parser.parse_args(arguments).measure:
        from benchmarks.baselines_lab import measure_lab  # noqa: PLC0415 - needs the model's wheel and the lab
        from benchmarks.baselines_measured import measure  # noqa: PLC0415

        np.savez_compressed(MODEL_SCORES, **measure(SEED))
        np.savez_compressed(LAB_SCORES, **measure_lab())
    data, lab = recorded(), recorded_lab()
    first, beside = ["baseline", "weighted by"], ["over the same by parameter norms", "weighted by"]
    gained, in_lab = [*gains(data)], [*lab_rows(lab)]
    write(
        "baselines",
        "Baselines by score norms, on a language model and in the lab",
        [*first, *data],
        gained,
        [
            *NOTES["gains"],
            table([*beside, *data], [stand_in(data)]),
            NOTES["stand-ins"],
            "## In the lab, along training",
            table([*first, *lab], in_lab),
            NOTES["lab"],
        ],
        seeds=(SEED,),
    )


NOTES = {
    "gains": (
        "Mean of (r - b)^2 |g|^2 over that of RLOO with groups of 8; below 1 is better. g is the gradient of a "
        "completion's log-probability in all 134,515,008 parameters of SmolLM2-135M-Instruct, without any training. "
        "Three-shot prompts, 40 a task at four levels, 16 completions each at temperature 1. Each of 200 random splits "
        "judges the baseline on the half of a prompt's completions that is not its history. Median (5% to 95% of the "
        "splits). An earlier look at another set of sums suggested the stand-in.",
        "b = sum(w r) / sum(w) with the weights w of the second column. constant: over the history of all prompts. "
        "others of the group: leave-one-out. other prompts: those of a batch with one rollout a prompt. "
        "`Optimal` is the package's own, after eight batches with one rollout a prompt.",
    ),
    "stand-ins": (
        "The same second moments over those with parameter norms as weights: the median over the splits, and the 95% "
        f"interval of {RESAMPLES} draws that resample the prompts too."
    ),
    "lab": (
        "The same for policies of the lab that uniform 4 trains with RLOO, after so many rollouts. Mean and 95% "
        "interval (Student's t) over eight runs (seeds 20 to 27)."
    ),
}


if __name__ == "__main__":
    main()
