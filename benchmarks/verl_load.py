"""Measure what a step of 10,000 or 100,000 prompts and 1,000 workers costs the coordinator of the verl integration.

    python -m benchmarks.verl_load alone     # the coordinator in one process
    python -m benchmarks.verl_load reports   # behind calls of Ray, with actors that stand for the workers

Without a word both are measured.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.common import RESULTS, spread, write
from benchmarks.verl_load_alone import Load, load_apart
from benchmarks.verl_load_answers import ALLOCATORS, ROLLOUTS
from benchmarks.verl_load_reports import Served, served_apart

WORKERS, ACTORS, SEEDS = 1000, 4, (0, 1, 2)
ALONE = (*((name, 10_000) for name in ALLOCATORS), ("uniform", 100_000))
"""The allocators and prompts that are measured alone."""

SERVED = (("uniform", 5_000, None), ("voting", 5_000, None), ("uniform", 500, 100), ("voting", 500, 100))
"""The allocators, prompts and wanted reports a second behind Ray's calls; None for as many as possible."""

EACH_SECONDS, REPORTS_A_SECOND, LATENCY_SECONDS = 50e-6, 500, 0.1
"""The targets: processor time of a report, five times the reports a second of 512 GPUs, and the 99th percentile."""

ALONE_COLUMNS = (
    "allocator, prompts, reports, CPU s, µs a report, µs of the slowest 1%, s to open, longest pause s, s of metrics, "
    "peak MiB"
)
SERVED_COLUMNS = (
    "allocator, prompts, wanted a second, taken a second, reports a call, µs of the thread, µs of the process, "
    "median ms, p99 ms"
)

Rated = Mapping[tuple[str, int, int | None], Sequence[Served]]
"""Runs by allocator, prompts and wanted rate; the rate is None if there is no limit."""


def study_alone(
    results: Path = RESULTS,
    sizes: Sequence[tuple[str, int]] = ALONE,
    workers: int = WORKERS,
    seeds: Sequence[int] = SEEDS,
) -> None:
    """Measure the coordinator alone and write the table ``verl_load``."""
    found: dict[tuple[str, int], list[Load]] = {size: [] for size in sizes}
    for seed in seeds:  # seed by seed, so that a busy moment of the machine does not hit one alone
        for (name, prompts), loads in found.items():
            loads.append(load_apart(name, prompts, workers, seed))
            print(name, prompts, seed, loads[-1], flush=True)
    write(
        "verl_load",
        "The load of the verl integration's coordinator",
        ALONE_COLUMNS.split(", "),
        alone_rows(found),
        [
            f"One request over {workers:,} workers, {ROLLOUTS} rollouts a prompt, on one core, with verl "
            f"{version('verl')}. Mean and 95% interval (Student's t) over seeds, which draw the outcomes of the "
            "rollouts. Processor time of the coordinator only, with other work on the machine. `µs a report` includes "
            "the call that opens the request. Peak memory is the growth of the process.",
            f"The target of {1e6 * EACH_SECONDS:.0f} µs a report was missed in "
            f"{sum(mean(one.each_seconds for one in loads) > EACH_SECONDS for loads in found.values())} of "
            f"{len(found)} rows.",
        ],
        seeds=seeds,
        cells={
            "alone": [
                {"allocator": name, "prompts": prompts, "seed": seed, **vars(one)}
                for (name, prompts), loads in found.items()
                for seed, one in zip(seeds, loads, strict=True)
            ]
        },
        results=results,
    )


def study_reports(
    results: Path = RESULTS,
    runs: Sequence[tuple[str, int, int | None]] = SERVED,
    workers: int = ACTORS,
    seeds: Sequence[int] = SEEDS,
) -> None:
    """Measure the coordinator behind Ray's calls and write the table ``verl_load_reports``."""
    found: dict[tuple[str, int, int | None], list[Served]] = {run: [] for run in runs}
    for seed in seeds:
        for (name, prompts, rate), served in found.items():
            served.append(served_apart(name, prompts, workers, seed, rate))
            print(name, prompts, rate, seed, _record(served[-1]), flush=True)
    write(
        "verl_load_reports",
        "The load of the verl integration's coordinator behind Ray's calls",
        SERVED_COLUMNS.split(", "),
        served_rows(found),
        [
            f"The coordinator in one process, and {workers} actors of Ray {version('ray')} on the same two cores that "
            f"answer its tasks, with verl {version('verl')}: as soon as they come, or 100 a second. `µs of the thread` "
            "is processor time a report, with other work on the machine; `p99 ms` is from a report to when the "
            "coordinator has it. Mean and 95% interval (Student's t) over seeds.",
            "Before, over ZeroMQ, `uniform` took 3,204 reports a second in the first case, at 125 µs of the thread a "
            "report, from 1,000 workers in two processes (commit ff47f8a).",
            f"The target of {1e6 * EACH_SECONDS:.0f} µs a report was missed in "
            f"{sum(mean(one.loop_seconds / one.reports for one in runs) > EACH_SECONDS for runs in found.values())} of "
            f"{len(found)} rows.",
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


def alone_rows(alone: Mapping[tuple[str, int], Sequence[Load]]) -> list[list[str]]:
    """Return one row for each allocator and size."""
    shown: tuple[tuple[Callable[[Load], float], str], ...] = (
        (lambda one: one.reports, ",.0f"),
        (lambda one: one.seconds, ".2f"),
        (lambda one: 1e6 * one.each_seconds, ".0f"),
        (lambda one: 1e6 * one.slow_seconds, ".0f"),
        (lambda one: one.open_seconds, ".2f"),
        (lambda one: one.pause_seconds, ".2f"),
        (lambda one: one.metrics_seconds, ".2f"),
        (lambda one: one.peak_bytes / 2**20, ",.0f"),
    )
    return [
        [name, f"{prompts:,}", *(spread([read(one) for one in found], form) for read, form in shown)]
        for (name, prompts), found in alone.items()
    ]


def served_rows(served: Rated) -> list[list[str]]:
    """Return one row for each allocator and rate."""
    shown: tuple[tuple[Callable[[Served], float], str], ...] = (
        (lambda one: one.rate, ",.0f"),
        (lambda one: one.reports / one.calls, ".1f"),
        (lambda one: 1e6 * one.loop_seconds / one.reports, ".0f"),
        (lambda one: 1e6 * one.cpu_seconds / one.reports, ".0f"),
        (lambda one: 1e3 * one.delay(0.5), ",.1f"),
        (lambda one: 1e3 * one.delay(0.99), ",.1f"),
    )
    return [
        [
            name,
            f"{prompts:,}",
            "-" if wanted is None else f"{wanted:,}",
            *(spread([read(one) for one in found], form) for read, form in shown),
        ]
        for (name, prompts, wanted), found in served.items()
    ]


def _record(one: Served) -> dict[str, Any]:
    own = {name: value for name, value in vars(one).items() if name != "delays"}
    return own | {"median_delay": one.delay(0.5), "p99_delay": one.delay(0.99)}


if __name__ == "__main__":
    studies: dict[str, Callable[[], None]] = {"alone": study_alone, "reports": study_reports}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *studies], help="what to measure; both if left out")
    for part in parser.parse_args().parts or studies:
        studies[part]()
