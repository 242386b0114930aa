"""Measure what the results of many rollouts cost the coordinator of the verl integration, behind calls of Ray.

Actors stand for the workers (``benchmarks.verl_load_reports``).

    python -m benchmarks.verl_load
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable, Mapping
from importlib.metadata import version
from statistics import mean

from benchmarks.common import RESULTS, spread, write
from benchmarks.verl_load_reports import Served, served_apart

ACTORS, SEEDS = 4, (0, 1, 2)
SERVED = (("uniform", 5_000, None), ("voting", 5_000, None), ("uniform", 500, 100), ("voting", 500, 100))
"""The allocators, prompts and wanted reports a second; None for as many as possible."""

EACH_SECONDS = 50e-6
"""The target: processor time of a report."""

SHOWN: dict[str, tuple[Callable[[Served], float], str]] = {
    "taken a second": (lambda one: one.rate, ",.0f"),
    "µs of the thread": (lambda one: 1e6 * one.loop_seconds / one.reports, ".0f"),
    "p99 ms": (lambda one: 1e3 * one.delay(0.99), ",.1f"),
}
"""What is shown of a run, by column."""

Case = tuple[str, int, int | None]
"""An allocator, prompts and a wanted rate."""


def study(results=RESULTS, runs=SERVED, workers=ACTORS, seeds=SEEDS):
    """Measure the coordinator behind Ray's calls and write the table ``verl_load_reports``."""
    found: Mapping[Case, list[Served]] = {run: [] for run in runs}
    for seed in seeds:  # seed by seed, so that a busy moment of the machine does not hit one alone
        for (name, prompts, rate), served in found.items():
            served.append(served_apart(name, prompts, workers, seed, rate))
            print(name, prompts, rate, seed, _record(served[-1]), flush=True)
    each = [mean(one.loop_seconds / one.reports for one in served) for served in found.values()]
    missed = sum(seconds > EACH_SECONDS for seconds in each)
    write(
        "verl_load_reports",
        "The load of the verl integration's coordinator behind Ray's calls",
        ["allocator", "prompts", "wanted a second", *SHOWN],
        [
            [name, f"{prompts:,}", "-" if wanted is None else f"{wanted:,}"]
            + [spread([read(one) for one in served], form) for read, form in SHOWN.values()]
            for (name, prompts, wanted), served in found.items()
        ],
        [
            f"The coordinator in one process, and {workers} actors of Ray {version('ray')} that answer its tasks, with "
            f"verl {version('verl')}. verl's trainer, the TransferQueue and generation are left out. Without a wanted "
            "rate, tasks are answered as soon as they come. `µs of the thread` is processor time a report, of the "
            "coordinator's thread; `p99 ms` is from a report to when the coordinator has it. Mean and 95% "
            "interval (Student's t) over seeds. The workers share the cores with the coordinator.",
            f"The target of {1e6 * EACH_SECONDS:.0f} µs a report was missed in {missed} of {len(found)} rows.",
        ],
        seeds=seeds,
        cells={
            "served": [
                {"allocator": name, "prompts": prompts, "wanted": wanted, "seed": seed, **_record(one)}
                for (name, prompts, wanted), served in found.items()
                for seed, one in zip(seeds, served, strict=True)
            ]
        },
        results=results,
    )


def _record(one):
    own = {name: value for name, value in vars(one).items() if name != "delays"}
    return own | {"median_delay": one.delay(0.5), "p99_delay": one.delay(0.99)}


if __name__ == "__main__":
    study()
