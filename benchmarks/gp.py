"""Time one update of the Gaussian process, and the paper's route, which keeps the Q x Q kernel.

Both run in one process, on one thread, on the same batches in turn. Processor seconds are counted, so that other load
on the machine does not count. The paper's route is written to be fast: one BLAS call for all distances, the kernel
in their place, and contiguous rows of it for each batch. It runs if the kernel fits in 16 GiB.

    python -m benchmarks.gp
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import statistics
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from apportion.predictors import GaussianProcess, PrecomputedEmbeddings
from apportion.types import Batch, Belief, Floats, Plan, Prompt, Rollout
from benchmarks.common import RESULTS, options, peak_mib, write

SIZES = (17_000, 100_000)
BATCH, DIMENSIONS, ROLLOUTS, SEED = 512, 384, 8, 0
CLIP, JITTER = 0.05, 1e-6
LARGEST_KERNEL = 16 * 2**30
COLUMNS = {
    "Q": "prompts Q",
    "ours_setup": "ours: setup, s",
    "ours_update": "ours: update, s",
    "paper_setup": "paper: setup, s",
    "paper_update": "paper: update, s",
    "paper_memory": "paper: peak memory, MiB",
}

NOTES = """
B = {batch} prompts a batch, d = {dimensions}, one thread; processor seconds: median (least to most) of {repeats}
updates, in turn with the other route. The paper's setup, once a run, is the kernel of all prompts; its route runs if
that fits in 16 GiB. With it kept, the paper's update is quicker. Ours saves the setup and the Q x Q memory.
""".strip()


@dataclass
class CachedKernel:
    """Section 5.1 and Algorithm 1 of arXiv 2602.01601 with a kept Sigma [Q, Q] and the same jitter as ours."""

    sigma: Floats
    mean: Floats

    @classmethod
    def of(cls, embeddings, bandwidth):
        sigma = embeddings @ embeddings.T
        norms = sigma.diagonal().copy()
        sigma *= -2
        sigma += norms
        sigma += norms[:, None]
        sigma *= -1 / (2 * bandwidth**2)
        np.exp(sigma, out=sigma)
        return cls(sigma, np.zeros(len(sigma)))

    def update(self, rows, observed):
        columns = self.sigma[rows]
        kernel = columns[:, rows]
        kernel.flat[:: len(rows) + 1] += JITTER
        self.mean += np.linalg.solve(kernel, observed - self.mean[rows]) @ columns
        self.mean[rows] = observed


def topics(count, generator):
    """Return unit vectors [count, 384] around 64 directions."""
    centres = generator.normal(size=(64, DIMENSIONS))
    x = centres[generator.integers(64, size=count)] + 1.5 * generator.normal(size=(count, DIMENSIONS))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True), np.float32)


def outcome(prompts, generator):
    """Return the rows of a random batch, and the batch after 8 rollouts of each prompt."""
    rows = generator.choice(len(prompts), min(BATCH, len(prompts)), replace=False)
    correct = generator.random((len(rows), ROLLOUTS)) < generator.random((len(rows), 1))
    batch = Batch.start([prompts[q] for q in rows], Belief.uniform(len(rows)))
    return rows, batch.add(Plan(np.full(len(rows), ROLLOUTS)), [[Rollout(bool(c)) for c in row] for row in correct])


def learn(paper, rows, batch):
    """Run the paper's update on the same batch as ours."""
    rate = np.clip(batch.successes / batch.trials, CLIP, 1 - CLIP)
    paper.update(rows, np.log(rate) - np.log1p(-rate))


def seconds(call):
    """Return the processor seconds of ``call``, and its result."""
    start = time.process_time()
    result = call()
    return time.process_time() - start, result


def compare(size, repeats):
    """Return one row of the table, with (median, least, most) of processor seconds over ``repeats`` updates."""
    generator = np.random.default_rng(SEED)
    x = topics(size, generator)
    prompts = [Prompt(f"prompt {number}") for number in range(size)]
    ours = GaussianProcess(PrecomputedEmbeddings.from_array(prompts, x), clip=CLIP, noise=JITTER)
    row: dict[str, Any] = {"Q": size, "ours_setup": seconds(lambda: ours.prepare(prompts))[0]}

    paper = None
    if 8 * size**2 <= LARGEST_KERNEL:
        bandwidth = ours.state_dict()["bandwidth"]
        memory, (setup, paper) = peak_mib(lambda: seconds(lambda: CachedKernel.of(x.astype(np.float64), bandwidth)))
        row |= {"paper_setup": setup, "paper_memory": memory}

    times: dict[str, list[float]] = {"ours_update": [], "paper_update": []}
    for _ in range(repeats):
        rows, batch = outcome(prompts, generator)
        times["ours_update"].append(seconds(partial(ours.update, batch))[0])
        if paper is not None:
            times["paper_update"].append(seconds(partial(learn, paper, rows, batch))[0])
    row |= {key: (statistics.median(some), min(some), max(some)) for key, some in times.items() if some}
    return row


def shown(key, value):
    if value is None:
        return "-"
    if isinstance(value, tuple):
        return "{:.3f} ({:.3f} to {:.3f})".format(*value)
    return f"{value:,.0f}" if key == "Q" or key.endswith("memory") else f"{value:.2f}"


def main():
    arguments = options(__doc__, sizes=SIZES, repeats=15, results=RESULTS)

    rows = [compare(size, arguments.repeats) for size in arguments.sizes]
    table = [[shown(key, row.get(key)) for key in COLUMNS] for row in rows]
    notes = NOTES.format(batch=BATCH, dimensions=DIMENSIONS, repeats=arguments.repeats)
    write(
        "gp",
        "One update of the Gaussian process",
        list(COLUMNS.values()),
        table,
        [notes],
        seeds=[SEED],
        results=arguments.results,
    )


if __name__ == "__main__":
    main()
