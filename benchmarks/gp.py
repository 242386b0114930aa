"""Time the Gaussian process of VIP, in one process on one thread.

Processor seconds are counted, so that other load on the machine does not count.

    python -m benchmarks.gp
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import numpy as np

from apportion.predictors import GaussianProcess, PrecomputedEmbeddings
from apportion.types import Batch, Belief, Plan, Prompt, Rollout
from benchmarks.common import RESULTS, options, processor_seconds, write

SIZES = (17_000, 100_000)
BATCH, DIMENSIONS, ROLLOUTS, SEED = 512, 384, 8, 0


def topics(count, generator):
    """Return unit vectors [count, 384] around 64 directions."""
    centres = generator.normal(size=(64, DIMENSIONS))
    x = centres[generator.integers(64, size=count)] + 1.5 * generator.normal(size=(count, DIMENSIONS))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True), np.float32)


def outcome(prompts, generator):
    """Return a random batch after 8 rollouts of each prompt."""
    rows = generator.choice(len(prompts), min(BATCH, len(prompts)), replace=False)
    correct = generator.random((len(rows), ROLLOUTS)) < generator.random((len(rows), 1))
    batch = Batch.start([prompts[q] for q in rows], Belief.uniform(len(rows)))
    return batch.add(Plan(np.full(len(rows), ROLLOUTS)), [[Rollout(bool(c)) for c in row] for row in correct])


def times(size, repeats):
    """Return one row of the table."""
    generator = np.random.default_rng(SEED)
    prompts = [Prompt(f"prompt {number}") for number in range(size)]
    process = GaussianProcess(PrecomputedEmbeddings.from_array(prompts, topics(size, generator)), clip=0.05, noise=1e-6)
    setup, *_ = processor_seconds(lambda: process.prepare(prompts), 1)
    batches = [outcome(prompts, generator) for _ in range(repeats)]
    update = processor_seconds(lambda: process.update(batches.pop()), repeats)
    return [f"{size:,}", f"{setup:.2f}", "{:.3f} ({:.3f} to {:.3f})".format(*update)]


def main():
    arguments = options(__doc__, sizes=SIZES, repeats=15, results=RESULTS)
    write(
        "gp",
        "One update of the Gaussian process",
        ["prompts Q", "ours: setup, s", "ours: update, s"],
        [times(size, arguments.repeats) for size in arguments.sizes],
        [
            f"B = {BATCH} prompts a batch, d = {DIMENSIONS}, one thread; processor seconds: median (least to most) of "
            f"{arguments.repeats} updates."
        ],
        seeds=[SEED],
        results=arguments.results,
    )


if __name__ == "__main__":
    main()
