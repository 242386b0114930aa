"""Time the exact integer solvers of VIP and HORA, in one process on one thread.

python -m benchmarks.solver
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import numpy as np

from apportion.allocators.hora import maximise_hits
from apportion.allocators.vip import minimise_variance
from apportion.types import Belief
from benchmarks.common import options, peak_mib, processor_seconds, write

SIZES = (512, 1_000_000)
PER_PROMPT, LOW, HIGH, PRE_ROLLOUTS, SEED = 8, 3, 64, 4, 0


def solvers(prompts):
    """Return the solvers by name, each for a U-shaped population, as of a data set that a policy half masters."""
    generator = np.random.default_rng(SEED)
    success, granted = generator.beta(0.7, 0.9, prompts), np.full(prompts, PRE_ROLLOUTS)
    posterior = Belief.uniform(prompts).condition(generator.binomial(PRE_ROLLOUTS, success), granted)
    budget = PER_PROMPT * prompts
    return {
        "ours, rloo": lambda: minimise_variance(success, budget, "rloo", LOW, HIGH),
        "ours, hit utility": lambda: maximise_hits(posterior, budget, granted, HIGH),
    }


def main():
    arguments = options(__doc__, sizes=SIZES, repeats=15)
    rows = []
    for prompts in arguments.sizes:
        for name, solve in solvers(prompts).items():
            seconds = processor_seconds(solve, arguments.repeats if prompts < 200_000 else 5)
            shown = "{:,.2f} ({:,.2f} to {:,.2f})".format(*(1e3 * each for each in seconds))
            rows.append([f"{prompts:,}", name, shown, f"{peak_mib(solve):,.1f}"])
    write(
        "solver",
        "Allocation: the exact solvers",
        ["prompts P", "solver", "milliseconds: median (least to most)", "peak MiB"],
        rows,
        [
            f"Success probabilities from Beta(0.7, 0.9), {PER_PROMPT} rollouts a prompt, between {LOW} and {HIGH}; the "
            f"hit utility after {PRE_ROLLOUTS} pre-rollouts. One thread, processor time. Peak memory is what numpy and "
            "Python allocate in one call.",
        ],
        seeds=[SEED],
    )


if __name__ == "__main__":
    main()
